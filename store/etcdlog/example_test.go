package etcdlog_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// etcdClient stands for clientv3.New in a program.
func etcdClient() *clientv3.Client { return newMemEtcd().Client(direct{}) }

// Any number of processes run a Replica of one store. One of them leads, and the others are
// standbys.
func ExampleReplica_Run() {
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := store.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	r := &etcdlog.Replica{
		Client:   etcdClient(), // clientv3.New(clientv3.Config{Endpoints: …})
		Listener: listener,
		OnLead: func(m *store.Memory) {
			if m != nil {
				fmt.Println("leading")
				cancel() // a program cancels at SIGTERM
			}
		},
	}
	if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
	// Output: leading
}

// A URL names the members of the etcd cluster, and the root of the store's keys.
func ExampleParseURL() {
	u, err := url.Parse("etcd://10.0.0.1:2379,10.0.0.2:2379/jobs")
	if err != nil {
		log.Fatal(err)
	}
	c, err := etcdlog.ParseURL(u)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Endpoints, c.Root)
	// Output: [10.0.0.1:2379 10.0.0.2:2379] jobs/
}

// A backup of any store, including one in a directory, becomes a replicated store.
func ExampleRestore() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s := store.New(&store.Memory{Dir: filepath.Join(dir, "store")})
	defer s.Close()
	if err := s.Set(ctx, "model", []byte("llama"), nil); err != nil {
		log.Fatal(err)
	}
	backup := filepath.Join(dir, "backup")
	f, err := os.Create(backup)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if _, err := s.Backup(ctx, f); err != nil {
		log.Fatal(err)
	}

	client := etcdClient() // clientv3.New(clientv3.Config{Endpoints: …})
	for range 2 {
		err := etcdlog.Restore(ctx, client, backup, &etcdlog.Options{Root: "jobs/"})
		fmt.Println(err == nil, errors.Is(err, etcdlog.ErrExists))
	}
	// Output:
	// true false
	// false true
}
