package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
)

// host is a store in this process.
type host struct {
	addr   net.Addr
	server *store.Server
	memory *store.Memory
	ended  chan error // gets what Serve returned, once
}

// hostOptions has defaults for its zero value.
type hostOptions struct {
	limits       store.Limits
	serverLimits store.ServerLimits
	insecure     bool
	logger       *slog.Logger
}

// startHost listens at addr, and serves there until close or drain.
func startHost(addr string, o hostOptions) (*host, error) {
	l, err := store.Listen(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	h := &host{addr: l.Addr(), memory: &store.Memory{Limits: o.limits}, ended: make(chan error, 1)}
	h.server = &store.Server{Engine: h.memory, Insecure: o.insecure, Limits: o.serverLimits, Logger: o.logger}
	go func() { h.ended <- h.server.Serve(l) }()
	return h, nil
}

func (h *host) url() string { return "muster://" + h.addr.String() }

// drain waits until the peers have hung up, for at most d or until ctx ends.
func (h *host) drain(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := h.server.Shutdown(ctx)
	h.close()
	return err
}

func (h *host) close() {
	_ = h.server.Close() // always nil
	_ = h.memory.Close()
}

// refused is what Serve says at once to a listener that it does not take.
func (h *host) refused() error {
	if a, ok := h.addr.(*net.TCPAddr); !ok || a.IP.IsLoopback() || h.server.Insecure {
		return nil
	}
	return <-h.ended
}

// listenError says what to do if an address, which a flag gave, cannot be had.
func listenError(flag, addr string, err error) error {
	var text string
	switch {
	case errors.Is(err, store.ErrInsecure):
		text = fmt.Sprintf("refusing to serve beyond loopback, at %s: whoever reaches it could read and write everything; "+
			"let %s be 127.0.0.1, or add --insecure if the network is yours", addr, flag)
	case errors.Is(err, syscall.EADDRINUSE):
		text = fmt.Sprintf("cannot listen at %s: %s: let %s have another port, or 0 for any that is free", addr, reason(err), flag)
	default:
		text = fmt.Sprintf("cannot listen at %s: %s: let %s be an address of this machine", addr, reason(err), flag)
	}
	return &exit{code: exitFailed, text: text, err: err}
}
