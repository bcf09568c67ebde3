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

// ExampleHandler serves the page of a store in the program's own HTTP server.
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

// ExampleNewWatch uses a view in a program that displays it itself.
func ExampleNewWatch() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := store.New(new(store.Memory))
	defer s.Close()

	v, err := status.NewWatch(s, time.Second, nil).View(ctx)
	fmt.Println(len(v.Waiting), "wait", err)
	// Output: 0 wait <nil>
}

// ExampleWatch_Look gets a view together with the status from which it was made, for numbers that
// the view does not contain.
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
		fmt.Println(w.What, w.Arrived, "calls", w.For, "s")
	}
	// Output: key model/ready 3 calls 90 s
}
