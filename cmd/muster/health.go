package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/muster-pg/muster/store"
)

// askTime is the timeout of a question to the store.
const askTime = 2 * time.Second

// health serves the health of a server over HTTP, without authentication; it shows nothing of what
// the store contains. /healthz reports whether the server is alive, and /readyz whether clients may
// connect: not while it loads its data, nor after it has been asked to stop. It notifies systemd
// too, if systemd started the process. A nil health notifies only systemd.
type health struct {
	http   http.Server
	addr   net.Addr
	store  atomic.Pointer[store.Store] // set while it serves
	ending atomic.Bool
}

// startHealth listens at addr, until close.
func startHealth(addr string) (*health, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	h := &health{addr: l.Addr()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { writeHealth(w, h.alive(r.Context())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { writeHealth(w, h.ready(r.Context())) })
	h.http = http.Server{Handler: mux, ReadTimeout: askTime, WriteTimeout: 2 * askTime, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	go func() { _ = h.http.Serve(l) }()
	return h, nil
}

func writeHealth(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// alive returns why the server should be restarted, or nil.
func (h *health) alive(ctx context.Context) error {
	s := h.store.Load()
	if s == nil {
		return nil // it loads its data, or it is a standby
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return ask(ctx, s)
}

// ready returns why clients should not connect, or nil.
func (h *health) ready(ctx context.Context) error {
	switch {
	case h.ending.Load():
		return errors.New("it ends")
	case h.store.Load() == nil:
		return errors.New("it reads what it has kept, or it is a standby")
	}
	return h.alive(ctx)
}

// serves records that e is served.
func (h *health) serves(e store.Engine) {
	if h != nil {
		h.store.Store(store.New(e))
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // without systemd this is no failure
}

// follows records that this process is a standby: alive, but not ready for clients.
func (h *health) follows() {
	if h != nil {
		h.store.Store(nil)
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
}

// ends records that the server has been asked to stop.
func (h *health) ends() {
	if h != nil {
		h.ending.Store(true)
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
}

func (h *health) close() {
	if h != nil {
		_ = h.http.Close()
	}
}
