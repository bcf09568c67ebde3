// Package status serves a web page of a store: which ranks wait, and for which other ranks.
//
//	http.Handle("/muster/", http.StripPrefix("/muster", status.Handler(s, nil)))
//
// All data comes from Store.Status. So the store may be in this process or on another host, all of
// it or the part below a prefix, and the page shows what s has the right to read. The package never
// changes the store.
package status

import (
	"net/http"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
)

// Options configures Handler; nil means defaults.
type Options struct {
	Address, Version string // of the store and of this program; shown unchanged
}

// Handler returns a handler that serves a status page of s and updates it while it is open. It
// answers only GET requests and changes nothing in the store.
//
// Handler does not authenticate: every client that can connect to it sees all that s may read. If
// that is too much, put an authenticating handler in front of it. On loopback, clients include the
// pages in every browser on the same machine, also from a host name whose DNS record is changed to
// 127.0.0.1 (DNS rebinding): reject requests whose Host is neither an address nor localhost.
//
// The page is at "/" of the handler, and its links are relative.
func Handler(s *store.Store, o *Options) http.Handler {
	if o == nil {
		o = new(Options)
	}
	return status.Handler(s, status.Options{Address: o.Address, Version: o.Version})
}
