package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
)

// server is a process under load.
type server struct {
	name       string
	addr       string
	newDialect func() dialect
	*process
}

func newWireDialect() dialect { return new(wireDialect) }
func newRESPDialect() dialect { return respDialect{} }

// spawnMuster starts a muster server; args is its directory, if it has one.
func spawnMuster(ctx context.Context, name string, args ...string) (*server, error) {
	p, err := spawn(ctx, "muster", args...)
	if err != nil {
		return nil, err
	}
	addr, err := p.line()
	return &server{name: name, addr: addr, newDialect: newWireDialect, process: p}, err
}

// errNoRedis is the error if redis-server is missing.
var errNoRedis = errors.New("redis-server is not in PATH: install it (apt install redis-server), or leave it out with -redis=false")

// spawnRedis starts a redis-server.
func spawnRedis(ctx context.Context, name string, args ...string) (*server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errNoRedis
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	p, err := start(ctx, "redis", nil, path, append([]string{"--bind", "127.0.0.1", "--port", port, "--save", ""}, args...)...)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, p.out) }() // until it ends
	if err := awaitListener(ctx, addr); err != nil {
		_ = p.Signal(os.Kill)
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	return &server{name: name, addr: addr, newDialect: newRESPDialect, process: p}, nil
}

func (s *server) isRedis() bool { return strings.HasPrefix(s.name, "redis") }

// kill ends a server that does not end with its stdin.
func (s *server) kill() {
	if s.isRedis() {
		_ = s.Signal(os.Interrupt)
	}
	s.stop()
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func awaitListener(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// serveMuster runs the role of a muster server. args is optional: a directory for its data.
func serveMuster(args []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m := new(store.Memory)
	if len(args) > 0 {
		m.Dir = args[0]
	}
	s := &store.Server{Engine: m}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	emit("%s", l.Addr())
	return listen(func(string) error { return nil })
}
