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

// replicaFlags are the flags of a replicated store and its log.
type replicaFlags struct {
	url, advertise string
	cluster        *etcdlog.Cluster // nil: the store is not replicated
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
	var err error
	if r.cluster, err = etcdOf(cmd, r.url); err != nil {
		return err
	}
	if r.advertise != "" {
		if err := checkListen(r.advertise, "7070"); err != nil {
			return usagef(cmd, "--advertise %s: %v", r.advertise, err)
		}
		return nil
	}
	host, _, _ := net.SplitHostPort(o.listen) // the address has been checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return usagef(cmd, "--listen %s is not an address that clients can dial: say which one is, by --advertise host:port", o.listen)
	}
	return nil
}

// etcdOf returns the etcd that the flag --etcd names, and the place of the store in it.
func etcdOf(cmd *cobra.Command, rawurl string) (*etcdlog.Cluster, error) {
	u, err := url.Parse(rawurl)
	if err != nil || u.Scheme != "etcd" && u.Scheme != "etcds" {
		return nil, usagef(cmd, "--etcd %s: not a URL of the form etcd://host:2379,host:2379[/root]", redacted(rawurl))
	}
	c, err := etcdlog.ParseURL(u)
	if err != nil {
		invalid, _ := errors.AsType[*store.Error](err)
		return nil, usagef(cmd, "--etcd %s: %s", u.Redacted(), invalid.Detail)
	}
	return c, nil
}

// current is the engine that the status page of this process uses: the store while this process is
// the leader. While it is a standby, it answers only requests for its status as a standby.
type current struct {
	memory  atomic.Pointer[store.Memory]
	standby atomic.Pointer[store.ReplicationStatus]
}

// Do implements store.Engine.
func (c *current) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if m := c.memory.Load(); m != nil {
		return m.Do(ctx, req, rep)
	}
	if r := c.standby.Load(); r != nil && req.Op == wire.OpStatus {
		*rep = wire.Reply{}
		rep.Keys, rep.Value = wire.AppendStatus([]string{}, []byte{}, &wire.Status{Replication: r})
		return nil
	}
	return &store.Error{Op: req.Op.String(), Code: wire.CodeUnavailable, Err: store.ErrUnavailable, Detail: "this process is a standby"}
}

// Close implements store.Engine. It does nothing: etcdlog.Replica closes the store of each term.
func (c *current) Close() error { return nil }

// replicate follows and serves a replicated store until a signal arrives or an error occurs that no
// retry resolves.
func (o *serving) replicate(cmd *cobra.Command, h *health, sigs <-chan os.Signal) error {
	l, err := store.Listen(cmd.Context(), o.listen)
	if err != nil {
		return listenError("--listen", o.listen, err)
	}
	defer l.Close()
	// reports wrong certificates, and an address that needs --insecure, at the start
	probe, err := o.server(new(store.Memory))
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
	page, err := o.show("muster://"+l.Addr().String(), shown)
	if err != nil {
		return err
	}
	defer page.close()
	r := &etcdlog.Replica{
		Client: client, Listener: l,
		Options: etcdlog.Options{Root: o.replica.cluster.Root, Logger: o.logger, OnStatus: shown.standby.Store},
		Addr:    cmp.Or(o.replica.advertise, l.Addr().String()), DrainTimeout: o.drain,
		NewMemory: func() *store.Memory { return &store.Memory{Limits: o.limits, Logger: o.logger} },
		NewServer: func(m *store.Memory) (*store.Server, error) { return o.server(m) },
		OnLead: func(m *store.Memory) {
			shown.memory.Store(m)
			if m == nil {
				h.follows()
				return
			}
			shown.standby.Store(nil)
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
		return &exit{code: exitFailed, text: "the store has failed: " + err.Error(), err: err}
	}
	return nil
}
