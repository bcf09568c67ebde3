package status_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/store"
)

// The page of a store, in a server of one's own.
func ExampleHandler() {
	s := store.New(new(store.Memory))
	defer s.Close()
	mux := http.NewServeMux()
	mux.Handle("/muster/", http.StripPrefix("/muster", status.Handler(s, nil)))
	srv := httptest.NewServer(mux)
	defer srv.Close()

	rep, err := http.Get(srv.URL + "/muster/status")
	if err != nil {
		log.Fatal(err)
	}
	defer rep.Body.Close()
	fmt.Println(rep.Status, rep.Header.Get("Content-Type"))
	// Output: 200 OK application/json
}

// A view for a program that shows it in its own way.
func ExampleNewWatch() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := store.New(new(store.Memory))
	defer s.Close()

	v, err := status.NewWatch(s, time.Second, nil).View(ctx)
	fmt.Println(len(v.Waiting), "wait", err)
	// Output: 0 wait <nil>
}

// The view for people, and the status that it is of, for numbers that it has not.
func ExampleWatch_Look() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := store.New(new(store.Memory))
	defer s.Close()

	v, of, err := status.NewWatch(s, time.Second, nil).Look(ctx)
	fmt.Println(v.Server.Keys, of.Server.Conns, err)
	// Output: 0 0 <nil>
}

func ExampleOf() {
	s := &store.Status{Keys: []store.KeyStatus{{Key: "model/ready", Calls: 3, Waited: 90 * time.Second}}}
	for _, w := range status.Of(s, nil, nil).Waiting {
		fmt.Println(w.What, w.Came, "calls", w.For, "s")
	}
	// Output: key model/ready 3 calls 90 s
}
