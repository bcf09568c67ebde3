package status_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

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
