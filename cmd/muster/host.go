package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
)

// host is a store that this process serves.
type host struct {
	addr   net.Addr
	server *store.Server
	memory *store.Memory
	ended  chan error // receives the result of Serve, once
}

// hostOptions configures a host. The zero value means defaults.
type hostOptions struct {
	limits       store.Limits
	data         string // directory; empty: in memory
	serverLimits store.ServerLimits
	insecure     bool
	stacks       bool
	tls          *store.TLSFiles // nil: without TLS
	access       []store.Access
	protocol     store.Protocol
	logger       *slog.Logger
}

// server returns a server of e, which does not listen yet.
func (o *hostOptions) server(e store.Backend) (*store.Server, error) {
	s := &store.Server{Engine: e, Insecure: o.insecure, Stacks: o.stacks, Access: o.access, Protocol: o.protocol, Limits: o.serverLimits, Logger: o.logger}
	if o.tls == nil {
		return s, nil
	}
	o.tls.Logger = o.logger
	var err error
	s.TLS, err = o.tls.Server()
	return s, err
}

// startHost listens at addr, and serves a store there until close or drain.
func startHost(addr string, o hostOptions) (*host, error) {
	memory := &store.Memory{Limits: o.limits, Dir: o.data, Logger: o.logger}
	server, err := o.server(memory)
	if err != nil {
		return nil, err
	}
	if err := memory.Open(); err != nil {
		return nil, err
	}
	h, err := startServer(addr, server, memory)
	if err != nil {
		_ = memory.Close()
	}
	return h, err
}

func startServer(addr string, server *store.Server, memory *store.Memory) (*host, error) {
	l, err := store.Listen(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	if err := server.Check(l.Addr()); err != nil {
		_ = l.Close()
		return nil, err
	}
	h := &host{addr: l.Addr(), server: server, memory: memory, ended: make(chan error, 1)}
	go func() { h.ended <- h.server.Serve(l) }()
	return h, nil
}

func (h *host) url() string { return "muster://" + h.addr.String() }

// drain waits until all clients have disconnected, for at most d or until ctx ends.
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

// listenError adds a remedy to the error of listening at addr, which was given by flag.
func listenError(flag, addr string, err error) error {
	text, wanting := "", " or a certificate (--secret-file, --access, --require-client-cert)"
	if flag != "--listen" {
		wanting = " (MUSTER_SECRET_FILE)"
	}
	detailed, _ := errors.AsType[*store.Error](err)
	switch {
	case errors.Is(err, store.ErrInsecure) && detailed != nil && detailed.Op == "access":
		text = "refusing to serve with this --access: " + strings.Replace(detailed.Detail, "set Insecure", "add --insecure", 1)
	case errors.Is(err, store.ErrInsecure):
		text = fmt.Sprintf("refusing to serve beyond loopback, at %s: all hosts that reach it could read and write everything; "+
			"set %s to 127.0.0.1, require a secret%s, or add --insecure in a trusted network", addr, flag, wanting)
	case errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrUnavailable):
		text = said(err)
	case errors.Is(err, syscall.EADDRINUSE):
		host, _, _ := net.SplitHostPort(addr) // it has been checked
		text = fmt.Sprintf("cannot listen at %s: %s: set %s to another port, or to %s for a free one", addr, reason(err), flag, net.JoinHostPort(host, "0"))
	default:
		text = fmt.Sprintf("cannot listen at %s: %s: set %s to an address of this machine", addr, reason(err), flag)
	}
	return &exit{code: exitFailed, text: text, err: err}
}
