package main

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// place is the store where the ranks of one run meet: a store in this process, whose port is
// therefore free, an existing store, or a port at which rank 0 is to listen.
type place struct {
	store      string // its URL; "": one of the others
	below      string // prefix of the ranks in the store that MUSTER_STORE names: other jobs use it too
	masterAddr string
	masterPort int // 0: this process hosts the store
	insecure   bool
	stacks     bool // of the store that this process hosts
	live       livenessFlag
	reconnect  time.Duration // reconnect timeout of the store that this process hosts; 0: the default

	host *host
	id   string // of the run
}

func (p *place) open() error {
	p.id = rand.Text()
	if p.live.timeout == 0 {
		if err := p.live.fromEnviron(); err != nil {
			return err
		}
	}
	if p.store != "" || p.masterPort != 0 {
		return nil
	}
	o := hostOptions{insecure: p.insecure, stacks: p.stacks, serverLimits: store.ServerLimits{LivenessTimeout: p.live.timeout, ReconnectTimeout: p.reconnect}}
	if p.stacks { // each request for stacks is logged
		o.logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if file := os.Getenv("MUSTER_SECRET_FILE"); file != "" { // the ranks have the variable too
		secret, err := store.ReadSecret(file)
		if err != nil {
			return &exit{code: exitUsage, text: "MUSTER_SECRET_FILE: " + said(err), err: err}
		}
		o.access = []store.Access{{Secret: secret, Write: true, Stacks: p.stacks}}
	}
	addr := net.JoinHostPort(p.masterAddr, "0")
	h, err := startHost(addr, o)
	if err != nil {
		return listenError("--master-addr", addr, err)
	}
	p.host = h
	return nil
}

// check rejects a store where ranks of several processes cannot meet.
func (p *place) check(cmd *cobra.Command) error {
	if p.store == "" {
		return nil
	}
	err := checkURL(p.store)
	if err == nil && strings.HasPrefix(p.store, "mem:") {
		err = errors.New("each process would have its own")
	}
	if err != nil {
		return usagef(cmd, "%s %s: %v", p.source(), redacted(p.store), err)
	}
	return nil
}

// source returns what has named the store.
func (p *place) source() string {
	if p.below != "" {
		return "MUSTER_STORE"
	}
	return "--store"
}

// jobStore returns the URL of the store for the ranks.
func (p *place) jobStore() string {
	u, err := url.Parse(p.store)
	if err != nil || p.below == "" || u.Scheme == "tcp" || u.Scheme == "tcpstore" { // PyTorch's has no prefixes
		return p.store
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/"+p.below, ""
	return u.String()
}

func (p *place) close() {
	if p.host != nil {
		p.host.close()
	}
}

// url returns the URL of the store where the ranks meet, for processes that can read the same files
// as this one.
func (p *place) url() string {
	if p.store != "" {
		return p.store
	}
	u := "muster://" + net.JoinHostPort(p.masterAddr, strconv.Itoa(p.masterPort))
	if p.host != nil {
		u = p.hostURL()
	}
	if file := os.Getenv("MUSTER_SECRET_FILE"); file != "" {
		if abs, err := filepath.Abs(file); err == nil {
			u += map[bool]string{false: "?", true: "&"}[strings.Contains(u, "?")] + "secret-file=" + url.QueryEscape(abs)
		}
	}
	return u
}

// environ returns the environment that makes a process the given rank of n, all on this node.
func (p *place) environ(rank, n int) []string {
	return p.attempt(agent.Attempt{ID: p.id, Size: n, Nodes: 1}, rank, n)
}

// attempt returns the environment of the process with the number local of n on this node.
func (p *place) attempt(a agent.Attempt, local, n int) []string {
	env := p.config(a.ID, a.First+local, a.Size)
	if host, port, err := net.SplitHostPort(a.MasterAddress); err == nil && p.masterPort == 0 {
		env = append(env, "MASTER_ADDR="+host, "MASTER_PORT="+port) // for programs that do not use the store
	}
	return append(env, "LOCAL_RANK="+strconv.Itoa(local), "LOCAL_WORLD_SIZE="+strconv.Itoa(n),
		"GROUP_RANK="+strconv.Itoa(a.Node), "GROUP_WORLD_SIZE="+strconv.Itoa(a.Nodes),
		"TORCHELASTIC_RESTART_COUNT="+strconv.Itoa(a.Restarts))
}

// hostURL returns the URL of the store that this process hosts, which turns off the TLS that the
// environment may set for other stores.
func (p *place) hostURL() string {
	for _, name := range []string{"MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY"} {
		if os.Getenv(name) != "" {
			return p.host.url() + "?tls=false"
		}
	}
	return p.host.url()
}

// worker returns the environment that leads a worker of an elastic job to the store. The URL has all
// that a client needs: package dataparallel reads no other variable.
func (p *place) worker() []string {
	var env []string
	if p.live.timeout > 0 {
		env = append(env, envLiveness+"="+p.live.timeout.String())
	}
	if p.insecure {
		env = append(env, "MUSTER_INSECURE=1")
	}
	if p.host != nil {
		return append(env, "MUSTER_STORE="+p.url())
	}
	r := remote{url: p.jobStore(), secure: parameters()}
	return append(env, "MUSTER_STORE="+r.target())
}

// config returns the environment that gives a process its rank, and where the ranks meet.
func (p *place) config(run string, rank, n int) []string {
	c := pgroup.Config{Run: run, Rank: rank, Size: n, Insecure: p.insecure, LivenessTimeout: p.live.timeout}
	switch {
	case p.store != "":
		c.Address = p.jobStore()
	case p.host == nil:
		c.Address = net.JoinHostPort(p.masterAddr, strconv.Itoa(p.masterPort))
	default:
		c.Address = p.hostURL()
	}
	return c.Environ()
}
