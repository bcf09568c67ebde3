package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// place is where the ranks of one run meet: a store in this process, whose port cannot
// be anybody else's, a store that is there, or a port that rank 0 is told to listen at.
type place struct {
	store      string // its URL; "": one of the others
	masterAddr string
	masterPort int // 0: this process hosts
	insecure   bool
	live       livenessFlag

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
	o := hostOptions{insecure: p.insecure, serverLimits: store.ServerLimits{LivenessTimeout: p.live.timeout}}
	if file := os.Getenv("MUSTER_SECRET_FILE"); file != "" { // the ranks have it too
		secret, err := store.ReadSecret(file)
		if err != nil {
			return &exit{code: exitUsage, text: "MUSTER_SECRET_FILE: " + strings.TrimPrefix(err.Error(), "store: "), err: err}
		}
		o.access = []store.Access{{Secret: secret, Write: true}}
	}
	addr := net.JoinHostPort(p.masterAddr, "0")
	h, err := startHost(addr, o)
	if err != nil {
		return listenError("--master-addr", addr, err)
	}
	p.host = h
	return nil
}

// check refuses a store where ranks of several processes cannot meet.
func (p *place) check(cmd *cobra.Command) error {
	if p.store == "" {
		return nil
	}
	err := checkURL(p.store)
	if err == nil && strings.HasPrefix(p.store, "mem:") {
		err = errors.New("each process would have one of its own")
	}
	if err != nil {
		return usagef(cmd, "--store %s: %v", redacted(p.store), err)
	}
	return nil
}

// show starts the page of the store that this process hosts, if there are to be both, and says where it is.
func (p *place) show(flags *pageFlags, out io.Writer) (*page, error) {
	if p.host == nil {
		return nil, nil
	}
	flags.store = p.host.url()
	g, err := flags.start(store.New(p.host.memory), nil)
	if g != nil {
		_, _ = fmt.Fprintln(out, "muster: who waits for whom is at", g.url())
	}
	return g, err
}

func (p *place) close() {
	if p.host != nil {
		p.host.close()
	}
}

// url is that of the store where the ranks meet, for who may read the same files as this process.
func (p *place) url() string {
	if p.store != "" {
		return p.store
	}
	u := "muster://" + net.JoinHostPort(p.masterAddr, strconv.Itoa(p.masterPort))
	if p.host != nil {
		u = p.host.url()
	}
	if file := os.Getenv("MUSTER_SECRET_FILE"); file != "" {
		if abs, err := filepath.Abs(file); err == nil {
			u += "?secret-file=" + url.QueryEscape(abs)
		}
	}
	return u
}

// environ is what makes a process rank number rank of n.
func (p *place) environ(rank, n int) []string {
	c := pgroup.Config{Run: p.id, Rank: rank, Size: n, Insecure: p.insecure, LivenessTimeout: p.live.timeout}
	switch {
	case p.store != "":
		c.Address = p.store
		return p.local(c.Environ(), rank, n)
	case p.host == nil:
		c.Address = net.JoinHostPort(p.masterAddr, strconv.Itoa(p.masterPort))
		return p.local(c.Environ(), rank, n)
	}
	c.Address = p.host.url()
	host, port, _ := net.SplitHostPort(p.host.addr.String()) // it is one
	plain := []string{"MASTER_ADDR=" + host, "MASTER_PORT=" + port, "MUSTER_TLS_CA=", "MUSTER_TLS_CERT=", "MUSTER_TLS_KEY="}
	return p.local(append(c.Environ(), plain...), rank, n)
}

func (p *place) local(env []string, rank, n int) []string {
	return append(env, "LOCAL_RANK="+strconv.Itoa(rank), "LOCAL_WORLD_SIZE="+strconv.Itoa(n))
}
