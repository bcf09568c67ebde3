package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// opened returns a store in this process, for the examples.
func opened() (context.Context, *store.Store) {
	return context.Background(), store.New(new(store.Memory))
}

func ExampleOpen() {
	ctx := context.Background()
	s, err := store.Open(ctx, "mem://") // or muster://127.0.0.1:7070/jobs/1
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	_ = s.Set(ctx, "model", []byte("ready"), nil)
	v, _ := s.Get(ctx, "model")
	fmt.Printf("%s\n", v)
	// Output: ready
}

func ExampleStore_Get() {
	ctx, s := opened()
	_, err := s.Get(ctx, "model")
	fmt.Println(err)
	// Output: store: get "model": not found
}

func ExampleStore_Set() {
	ctx, s := opened()
	_ = s.Set(ctx, "lease", []byte("rank 0"), &store.SetOptions{TTL: time.Minute})
	for e, err := range s.List(ctx, "lease") {
		if err != nil {
			fmt.Println(err)
		}
		fmt.Printf("%s %s, at most %v\n", e.Key, e.Value, e.TTL.Round(time.Second))
	}
	// Output: lease rank 0, at most 1m0s
}

func ExampleStore_Wait() {
	ctx, s := opened()
	go func() {
		_ = s.Set(ctx, "b", []byte("2"), nil)
		_ = s.Set(ctx, "a", []byte("1"), nil)
	}()
	v, _ := s.Wait(ctx, "a", "b")
	fmt.Printf("%s\n", v)
	// Output: [1 2]
}

func ExampleStore_Add() {
	ctx, s := opened()
	_, _ = s.Add(ctx, "ranks", 3)
	n, _ := s.Add(ctx, "ranks", -1)
	fmt.Println(n)
	// Output: 2
}

func ExampleStore_Swap() {
	ctx, s := opened()
	_, _ = s.Swap(ctx, "leader", nil, []byte("rank 2")) // the first swap wins
	now, err := s.Swap(ctx, "leader", nil, []byte("rank 3"))
	fmt.Printf("%s: %v\n", now, err)
	// Output: rank 2: store: swap "leader": conflict
}

func ExampleStore_SwapFor() {
	ctx, s := opened()
	// Rank 2 leads for a minute, and then extends that by another minute.
	_, _ = s.SwapFor(ctx, "leader", nil, []byte("rank 2"), time.Minute)
	now, _ := s.SwapFor(ctx, "leader", []byte("rank 2"), []byte("rank 2"), time.Minute)
	fmt.Printf("%s\n", now)
	// Output: rank 2
}

func ExampleStore_Append() {
	ctx, s := opened()
	_, _ = s.Append(ctx, "log", []byte("one "))
	n, _ := s.Append(ctx, "log", []byte("two"))
	v, _ := s.Get(ctx, "log")
	fmt.Printf("%d: %s\n", n, v)
	// Output: 7: one two
}

func ExampleStore_Delete() {
	ctx, s := opened()
	_ = s.Set(ctx, "a", nil, nil)
	n, _ := s.Delete(ctx, "a", "b")
	fmt.Println(n)
	// Output: 1
}

func ExampleStore_List() {
	ctx, s := opened()
	for _, k := range []string{"rank/1", "rank/0", "other"} {
		_ = s.Set(ctx, k, []byte("here"), nil)
	}
	for e, err := range s.List(ctx, "rank/") {
		fmt.Println(e.Key, string(e.Value), err)
	}
	// Output:
	// rank/0 here <nil>
	// rank/1 here <nil>
}

func ExampleStore_Keys() {
	ctx, s := opened()
	_ = s.Set(ctx, "weights/0", make([]byte, 1<<20), nil)
	_ = s.Set(ctx, "weights/1", make([]byte, 1<<20), nil)
	// The values, of a million bytes each, are not transferred.
	for key, err := range s.Keys(ctx, "weights/") {
		fmt.Println(key, err)
	}
	// Output:
	// weights/0 <nil>
	// weights/1 <nil>
}

func ExampleStore_Watch() {
	ctx, s := opened()
	now, _ := s.Revision(ctx)
	_ = s.Set(ctx, "rank/0", []byte("here"), nil)
	_, _ = s.Delete(ctx, "rank/0")
	for e, err := range s.Watch(ctx, "rank/", now) {
		if err != nil || e.Deleted {
			fmt.Println(e.Key, "is gone", err)
			break
		}
		fmt.Println(e.Key, string(e.Value))
	}
	// Output:
	// rank/0 here
	// rank/0 is gone <nil>
}

// Two ranks join a group, and exchange a payload.
func ExampleStore_Collect() {
	ctx, s := opened()
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			membership, err := s.Join(ctx, wire.Contribution{Group: "g", Rank: rank, Size: 2}, nil)
			if err != nil {
				return
			}
			all, err := s.Collect(ctx, wire.Contribution{
				Generation: membership.Generation, Rank: rank, Seq: 1, Root: -1, Verb: "all-gather", Want: wire.WantAll,
			}, fmt.Append(nil, "from ", rank))
			if rank == 0 {
				fmt.Printf("%s %v\n", all, err)
			}
		})
	}
	ranks.Wait()
	// Output: [from 0 from 1] <nil>
}

func ExampleDial() {
	ctx := context.Background()
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	srv := &store.Server{Engine: new(store.Memory)}
	done := make(chan error)
	go func() { done <- srv.Serve(l) }()
	s, err := store.Dial(ctx, l.Addr().String(), &store.DialOptions{Wait: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := s.Add(ctx, "hits", 1)
	fmt.Println(n, err)
	_ = s.Close()
	_ = srv.Shutdown(ctx)
	fmt.Println(<-done)
	// Output:
	// 1 <nil>
	// store: server closed
}

func ExamplePrefix() {
	ctx, s := opened()
	job := store.Prefix(s, "jobs/7/")
	_ = job.Set(ctx, "state", []byte("running"), nil)
	v, _ := s.Get(ctx, "jobs/7/state")
	fmt.Printf("%s\n", v)
	// Output: running
}

// A relay is a Server whose Engine is a client of the store. The ranks of a host connect to it.
func ExampleNewRelay() {
	ctx := context.Background()
	memory := new(store.Memory)
	host := &store.Server{Engine: memory}
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	go func() { _ = host.Serve(l) }()

	r, err := store.NewRelay(ctx, "muster://"+l.Addr().String(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	relay := &store.Server{Engine: r}
	at, _ := net.Listen("tcp", "127.0.0.1:0")
	go func() { _ = relay.Serve(at) }()

	rank, _ := store.Dial(ctx, at.Addr().String(), nil)
	_ = rank.Set(ctx, "model", []byte("ready"), nil)
	v, _ := store.New(memory).Get(ctx, "model")
	fmt.Printf("%s\n", v)
	_ = rank.Close()
	_ = relay.Close()
	_ = r.Close()
	_ = host.Close()
	// Output: ready
}

func ExampleStore_Push() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	defer s.Close()
	_ = s.Push(ctx, "work", []byte("first"))
	_ = s.Push(ctx, "work", []byte("second"))
	n, _ := s.QueueLen(ctx, "work")
	v, _ := s.Pop(ctx, "work")
	fmt.Printf("%d, and the first is %q\n", n, v)
	// Output: 2, and the first is "first"
}

func ExampleStore_TryPop() {
	s := store.New(new(store.Memory))
	defer s.Close()
	_, n, err := s.TryPop(context.Background(), "work")
	fmt.Println(n, err)
	// Output: 0 <nil>
}

// Peers that know one secret may write everything; peers that know the other may read the
// configuration.
func ExampleServer_access() {
	ctx := context.Background()
	owner, viewer := []byte("an owner's 32 random bytes, say."), []byte("a viewer's, from ReadSecret too.")
	l, err := store.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := &store.Server{Engine: new(store.Memory), Access: []store.Access{
		{Secret: owner, Write: true},
		{Secret: viewer, Prefix: "config/"},
	}}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()

	dial := func(secret []byte) *store.Store {
		s, err := store.Dial(ctx, l.Addr().String(), &store.DialOptions{Secret: secret})
		if err != nil {
			e, _ := errors.AsType[*store.Error](err)
			fmt.Println(errors.Is(err, store.ErrDenied), e.Detail)
			return nil
		}
		return s
	}
	o, v := dial(owner), dial(viewer)
	defer o.Close()
	defer v.Close()
	fmt.Println(o.Set(ctx, "config/lr", []byte("0.1"), nil))
	lr, err := v.Get(ctx, "config/lr")
	fmt.Println(string(lr), err)
	fmt.Println(v.Set(ctx, "config/lr", []byte("9"), nil))
	dial(nil)
	// Output:
	// <nil>
	// 0.1 <nil>
	// store: set "config/lr": denied: no right to write "config/lr": this peer may read below "config/"
	// true this store requires a secret, and none was given
}

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
