package etcdstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
)

// A program says which engines its users may name.
func ExampleOpen() {
	schemes := store.Builtin()
	schemes["etcd"], schemes["etcds"] = etcdstore.Open, etcdstore.Open

	_, err := pgroup.Create(context.Background(), pgroup.Config{
		Rank: 0, Size: 2, Schemes: schemes, Address: "etcd://127.0.0.1:1,127.0.0.1:2/jobs?mend=10ms",
	})
	fmt.Println("nobody is there:", errors.Is(err, store.ErrUnavailable))
	// Output: nobody is there: true
}

func ExampleDial() {
	_, err := etcdstore.Dial(context.Background(), []string{"127.0.0.1:1"}, &etcdstore.Options{Root: "jobs/", Mend: 1})
	fmt.Println("nobody is there:", errors.Is(err, store.ErrUnavailable))
	// Output: nobody is there: true
}
