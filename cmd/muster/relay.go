package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/spf13/cobra"
)

// relaying holds the options of relay.
type relaying struct {
	hostOptions
	limit    connFlags
	who      accessFlags
	torch    torchFlags
	below    string // prefix of the keys of PyTorch, which are all that a client can reach
	untilEOF bool
	listen   string
	store    string
	cluster  *etcdlog.Cluster // nil: store contains the store's own addresses
	timeout  time.Duration
	logLevel string
}

func newRelay() *cobra.Command {
	o := &relaying{}
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Bring all ranks of a host to a store over one connection, until SIGINT or SIGTERM",
		Long: `Bring all ranks of a host to a store over one connection, until SIGINT or SIGTERM. The store then
has one connection, and one message of each barrier, for each host and not for each rank. Ranks
connect to the relay as if it were the store. The first line on standard output is its address.

The store keeps all state: a relay can be stopped and started again. Its ranks resume if they
reconnect in time (serve --reconnect-timeout), by this relay or another address of their URL:
muster://127.0.0.1:7070,store:7070. Otherwise they fail, and errors name the relay.

--secret-file, --access and --tls-… authenticate clients of the relay, as for serve. The relay's
own credentials for the store are in the URL of --store:
muster://store:7070?secret-file=FILE&ca=FILE&cert=FILE&key=FILE
or etcd://etcd:2379/root?secret-file=FILE&store-ca=FILE&store-cert=FILE&store-key=FILE
or in MUSTER_SECRET_FILE, MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY, as for a client.
Its ranks have the relay's rights, as far as --access allows. So a relay with its own secret
or certificate requires one of its ranks too, or --insecure.

PyTorch processes may use the relay as a TCPStore (--torch). Their client knows one address and does
not reconnect: through a relay on its host, a job continues when another process serves the store.
--torch-prefix gives each job its own keys.

Sizes are bytes, or 64KiB, 16MiB, 4GiB.`,
		Example: `  muster relay --store muster://10.0.0.5:7070
  muster relay --store etcd://10.0.0.1:2379,10.0.0.2:2379/jobs
  muster relay --listen 127.0.0.1:0 --store 'muster://10.0.0.5:7070?secret-file=job.secret' \
    --secret-file host.secret`,
		Args:              operands(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7070", "`address` (host:port) to listen at")
	f.StringVar(&o.store, "store", "", "`URL` of the store, muster://host:port[?secret-file=…] or etcd://host:port,host:port[/root]; or set MUSTER_STORE")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "time to wait for the store at start")
	f.BoolVar(&o.insecure, "insecure", false, "allow unauthenticated access, from other hosts or to a relay with its own credentials")
	f.StringVar(&o.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	f.BoolVar(&o.untilEOF, "until-eof", false, "stop when standard input ends: with the process that holds its other end")
	f.StringVar(&o.below, "torch-prefix", "", "`prefix` of keys that PyTorch sees as the whole store, without authentication; other clients need --secret-file or --access")
	o.torch.register(cmd)
	o.who.register(cmd)
	o.limit.register(cmd)
	return cmd
}

// check validates what the flags alone cannot, and sets the options that follow from it.
func (o *relaying) check(cmd *cobra.Command) error {
	if err := checkListen(o.listen, "7070"); err != nil {
		return usagef(cmd, "--listen %s: %v", o.listen, err)
	}
	if err := checkPositive(cmd, "timeout"); err != nil {
		return err
	}
	if o.below != "" && !o.torch.on {
		return usagef(cmd, "--torch-prefix needs --torch")
	}
	at := &remote{url: o.store, secure: parameters()}
	if err := at.check(cmd); err != nil {
		return err
	}
	o.store = at.target()
	u, err := url.Parse(o.store)
	switch {
	case err == nil && (u.Scheme == "etcd" || u.Scheme == "etcds"):
		if o.cluster, err = etcdlog.ParseURL(u); err != nil {
			return usagef(cmd, "--store: %v", err)
		}
	case err != nil || u.Scheme != "muster":
		return usagef(cmd, "--store %s: a relay is of muster://host:port or etcd://host:port", redacted(o.store))
	}
	if o.logger, err = newLogger(cmd, o.logLevel); err != nil {
		return err
	}
	if o.serverLimits, err = o.limit.check(cmd); err != nil {
		return err
	}
	if o.protocol, err = o.torch.check(cmd); err != nil {
		return err
	}
	o.tls, o.access, err = o.who.check(cmd, false)
	if o.below != "" {
		o.access = append(o.access, store.Access{Protocol: o.protocol.Name(), Prefix: o.below, Write: true})
	}
	return err
}

func (o *relaying) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	ctx, stop := untilSignal(context.Background())
	defer stop()
	if o.untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // an error is an end too
			stop()
		}()
	}
	r, err := o.open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer r.Close()
	server, err := o.server(r)
	if err != nil {
		return listenError("--listen", o.listen, err)
	}
	h, err := startServer(o.listen, server, nil)
	if e, ok := errors.AsType[*store.Error](err); ok && e.Op == "relay" {
		return &exit{code: exitFailed, text: "refusing to relay at " + o.listen + ": " + e.Detail + " (--secret-file, --access, --require-client-cert, --insecure)", err: err}
	}
	if err != nil {
		return listenError("--listen", o.listen, err)
	}
	defer h.server.Close()
	(*health)(nil).serves(r) // notifies systemd, which may wait for it
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), h.url()); err != nil {
		return err
	}
	o.logger.Info("relaying", "store", redacted(o.store), "at", h.url(), "pid", os.Getpid())
	select {
	case err := <-h.ended:
		return err
	case <-ctx.Done():
		o.logger.Info("stopped")
		return nil
	}
}

// unavailableLogDelay is how long the store may be unavailable before a message is logged.
const unavailableLogDelay = 2 * time.Second

// open waits until the store is available, and connects to it.
func (o *relaying) open(ctx context.Context) (*store.Relay, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	defer time.AfterFunc(unavailableLogDelay, func() {
		o.logger.Warn("waiting for the store: it does not answer yet", "store", redacted(o.store), "timeout", o.timeout)
	}).Stop()
	at, options := o.store, store.DialOptions{}
	if o.cluster != nil {
		at, options = "muster://"+o.cluster.Endpoints[0], o.cluster.Dial
		options.Resolve, options.WaitReplaced = o.cluster.Leader, o.cluster.WaitReplaced
	}
	options.Wait, options.Logger = true, o.logger
	r, err := store.NewRelay(ctx, at, &options)
	if e, ok := errors.AsType[*store.Error](err); ok {
		return nil, &storeError{o.store, e}
	}
	return r, err
}

// newLogger returns a logger to standard error.
func newLogger(cmd *cobra.Command, name string) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return nil, usagef(cmd, "--log-level %s is none of debug, info, warn and error", name)
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level})), nil
}
