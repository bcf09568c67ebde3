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

// askTime is how long the store may take for the answer to a question.
const askTime = 2 * time.Second

// health tells over HTTP how a server does, to whoever may reach its address: that, and nothing of what the store holds. /healthz is
// whether it lives, and /readyz whether clients should come: not while it reads what it has kept, nor once it has been told to end.
// It tells systemd too, if that has started it. A nil one tells systemd alone.
type health struct {
	http   http.Server
	addr   net.Addr
	store  atomic.Pointer[store.Store] // once it serves
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { tell(w, h.alive(r.Context())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { tell(w, h.ready(r.Context())) })
	h.http = http.Server{Handler: mux, ReadTimeout: askTime, WriteTimeout: 2 * askTime, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	go func() { _ = h.http.Serve(l) }()
	return h, nil
}

func tell(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// alive is why the server should be started anew.
func (h *health) alive(ctx context.Context) error {
	s := h.store.Load()
	if s == nil {
		return nil // it reads what it has kept, or follows
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return ask(ctx, s)
}

// ready is why clients should not come.
func (h *health) ready(ctx context.Context) error {
	switch {
	case h.ending.Load():
		return errors.New("it ends")
	case h.store.Load() == nil:
		return errors.New("it reads what it has kept, or it is a standby")
	}
	return h.alive(ctx)
}

// serves tells that e is served.
func (h *health) serves(e store.Engine) {
	if h != nil {
		h.store.Store(store.New(e))
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // nobody to tell is no failure
}

// follows reports that this process is a standby: alive, and not ready for clients.
func (h *health) follows() {
	if h != nil {
		h.store.Store(nil)
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
}

// ends tells that the server has been told to end.
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
