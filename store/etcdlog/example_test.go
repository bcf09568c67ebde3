package etcdlog_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// Any number of such processes serve one store: one leads, and the others stand by. They need an
// etcd, so the examples of this package are compiled and not run.
func ExampleReplica_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	listener, err := store.Listen(ctx, "10.0.0.1:7070")
	if err != nil {
		log.Fatal(err)
	}
	r := &etcdlog.Replica{Client: client, Listener: listener}
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A client names the etcd, and reaches whichever process leads.
func ExampleOpen() {
	ctx := context.Background()
	open := store.Schemes{"etcd": etcdlog.Open, "etcds": etcdlog.Open}
	s, err := open.Open(ctx, "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/jobs")
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	n, err := s.Add(ctx, "starts", 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("start", n)
}

// A backup of any store, also of one in a directory, becomes a replicated one.
func ExampleRestore() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"10.0.0.1:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := etcdlog.Restore(ctx, client, "/backups/store", &etcdlog.Options{Root: "jobs/"}, nil); err != nil {
		log.Fatal(err)
	}
}
