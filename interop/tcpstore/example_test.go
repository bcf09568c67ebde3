package tcpstore_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// A server that Python reaches as torch.distributed.TCPStore(host, port, is_master=False).
func ExampleProtocol() {
	srv := &store.Server{Engine: new(store.Memory), Protocol: &tcpstore.Protocol{}}
	defer srv.Engine.Close()
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()

	// Here a Go client takes the part of Python.
	ctx := context.Background()
	c, err := tcpstore.Dial(ctx, l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	python := store.New(c)
	defer python.Close()
	if err := python.Set(ctx, "model", []byte("llama"), nil); err != nil {
		log.Fatal(err)
	}
	v, err := store.New(srv.Engine).Wait(ctx, "model")
	fmt.Printf("%s %v\n", v, err)
	// Output: [llama] <nil>
}

// A store that a Python process hosts, by its URL.
func ExampleOpen() {
	schemes := store.Builtin()
	schemes["tcp"] = tcpstore.Open
	_, err := schemes.Open(context.Background(), "tcp://10.0.0.1:29500?torch=2.9")
	fmt.Println(err)
	// Output: store: open "tcp://10.0.0.1:29500?torch=2.9": invalid request: ?torch=2.9: the only parameter is join=true
}
