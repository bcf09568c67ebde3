package store_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// The status names the ranks for which a group waits.
func ExampleStore_Status() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := store.New(new(store.Memory))
	defer s.Close()

	joining, leave := context.WithCancel(ctx)
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		_, _ = s.Join(joining, wire.Contribution{Group: "train", Rank: 1, Size: 3, Label: "pid 7 on node-b"}, nil)
	}()
	for {
		all, err := s.Status(ctx, "")
		if err != nil {
			log.Fatal(err)
		}
		if len(all.Groups) > 0 {
			r := all.Groups[0].Records[0]
			fmt.Println(all.Groups[0].Name, r.Verb, "came:", r.Arrived.First(10), "missing:", r.Missing.First(10))
			break
		}
	}
	leave()
	<-joined
	// Output: train create came: [1] missing: [0 2]
}

func ExampleReadOnly() {
	s := store.ReadOnly(store.New(new(store.Memory)))
	fmt.Println(s.Set(context.Background(), "k", nil, nil))
	// Output: store: set "k": denied: no right to write "k": this peer may read everything
}

func ExampleStore_Names() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	defer s.Close()
	for _, k := range []string{"a/1", "a/2", "a/3", "b"} {
		if err := s.Set(ctx, k, []byte("not shown"), nil); err != nil {
			log.Fatal(err)
		}
	}
	entries, more, err := s.Names(ctx, "a/", "a/1", 1)
	fmt.Println(entries[0].Key, entries[0].Value == nil, more, err)
	// Output: a/2 true true <nil>
}
