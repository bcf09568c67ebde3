package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"sync/atomic"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

// replicaFlags say where the log of a replicated store is.
type replicaFlags struct {
	url, advertise string
	cluster        *etcdlog.Cluster // nil: the store is this process's alone
}

func (r *replicaFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.url, "etcd", "", "`URL` of an etcd that keeps the store, etcd://host:2379,host:2379[/root]: of several such processes one serves, the others take over")
	f.StringVar(&r.advertise, "advertise", "", "with --etcd: `address` where clients reach this process, host:port; default is --listen")
}

func (r *replicaFlags) check(cmd *cobra.Command, o *serving) error {
	switch {
	case r.url == "" && r.advertise != "":
		return usagef(cmd, "--advertise is for --etcd")
	case r.url == "":
		return nil
	case o.data != "":
		return usagef(cmd, "--data and --etcd are two places for one store: give one of them")
	}
	u, err := url.Parse(r.url)
	if err != nil || u.Scheme != "etcd" && u.Scheme != "etcds" {
		return usagef(cmd, "--etcd %s: it is no URL of the form etcd://host:2379,host:2379[/root]", redacted(r.url))
	}
	if r.cluster, err = etcdlog.ParseURL(u); err != nil {
		invalid, _ := errors.AsType[*store.Error](err)
		return usagef(cmd, "--etcd %s: %s", u.Redacted(), invalid.Detail)
	}
	if r.advertise != "" {
		if err := checkListen(r.advertise); err != nil {
			return usagef(cmd, "--advertise %s: %v", r.advertise, err)
		}
		return nil
	}
	host, _, _ := net.SplitHostPort(o.listen) // has been checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return usagef(cmd, "--listen %s is no address that clients can dial: say which one is, by --advertise host:port", o.listen)
	}
	return nil
}

// current is the engine of this process: the store that it leads, or an error while it follows.
type current struct{ memory atomic.Pointer[store.Memory] }

// Do implements store.Engine.
func (c *current) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if m := c.memory.Load(); m != nil {
		return m.Do(ctx, req, rep)
	}
	return &store.Error{Op: req.Op.String(), Code: wire.CodeUnavailable, Err: store.ErrUnavailable, Detail: "this process is a standby"}
}

// Close implements store.Engine. It does nothing: etcdlog.Replica closes the store of each term.
func (c *current) Close() error { return nil }

// replicate follows and serves a replicated store until a signal arrives or an error occurs that no retry resolves.
func (o *serving) replicate(cmd *cobra.Command, h *health, sigs <-chan os.Signal) error {
	l, err := store.Listen(cmd.Context(), o.listen)
	if err != nil {
		return listenError("--listen", o.listen, err)
	}
	defer l.Close()
	probe, err := o.server(new(store.Memory)) // reports wrong certificates, and an address that needs --insecure, at the start
	if err == nil {
		err = probe.Check(l.Addr())
	}
	if err != nil {
		return listenError("--listen", o.listen, err)
	}
	client, err := o.replica.cluster.Client()
	if err != nil {
		return &exit{code: exitFailed, text: err.Error(), err: err}
	}
	defer client.Close()
	shown := &current{}
	o.page.store = "muster://" + l.Addr().String()
	page, err := o.page.start(store.New(shown), o.tls)
	if err != nil {
		return err
	}
	defer page.close()
	r := &etcdlog.Replica{
		Client: client, Options: etcdlog.Options{Root: o.replica.cluster.Root, Logger: o.logger}, Listener: l,
		Addr: cmp.Or(o.replica.advertise, l.Addr().String()), Drain: o.drain,
		Memory: func() *store.Memory { return &store.Memory{Limits: o.limits, Logger: o.logger} },
		Server: func(m *store.Memory) (*store.Server, error) { return o.server(m) },
		Leads: func(m *store.Memory) {
			shown.memory.Store(m)
			if m == nil {
				h.follows()
				return
			}
			h.serves(m)
		},
	}
	h.follows()
	if _, err := cmd.OutOrStdout().Write([]byte(o.page.store + "\n")); err != nil {
		return err
	}
	o.logger.Info("following", "etcd", client.Endpoints(), "root", r.Options.Root, "pid", os.Getpid())
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	select {
	case err = <-ended:
	case sig := <-sigs:
		o.logger.Info("stopping", "signal", sig, "drain", o.drain)
		h.ends()
		stop()
		select {
		case err = <-ended:
		case <-sigs: // at once
		}
	}
	if err != nil {
		return &exit{code: exitFailed, text: "the store cannot go on: " + err.Error(), err: err}
	}
	return nil
}
