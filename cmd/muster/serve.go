package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// serving holds the options of serve.
type serving struct {
	hostOptions
	limit    limitFlags
	who      accessFlags
	torch    torchFlags
	page     pageFlags
	replica  replicaFlags
	listen   string
	health   string
	drain    time.Duration
	logLevel string
	untilEOF bool
}

func newServe() *cobra.Command {
	o := &serving{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Host a store until SIGINT or SIGTERM",
		Long: `Host a store until SIGINT or SIGTERM. The store is in memory, or with --data in a directory. A store
with --data has all acknowledged changes after a crash, of the process or the machine, and clients
reconnect when it is back. With --etcd, several processes share one store in an etcd: one of them
leads, and another one takes over within a second when it fails. Clients name all of the processes,
--store muster://a:7070,b:7070, or the etcd, --store etcd://host:2379.

The first line on standard output is the store's address, as --store and MUSTER_STORE take it; with
port 0 the system chooses the port. Logs go to standard error. The first signal stops the server
gracefully: clients are notified, and have --drain to disconnect. A second one stops it at once.

--health serves /healthz (the process works) and /readyz (clients may connect) over HTTP, for
supervisors and load balancers. systemd gets the same (Type=notify).

--http serves the status page: groups and ranks, who waits for whom and for how long, the last
failures. It changes nothing. It requires a password (--http-secret-file) if the store
requires authentication, and beyond loopback, where it also requires TLS (--tls-cert).

Beyond loopback the store requires authentication: a secret, which both sides prove and neither
sends (--secret-file), or a client certificate (--tls-ca with --require-client-cert; "muster certs"
makes them). TLS alone authenticates no client. Changed certificates are reloaded.

--access gives rights, by secret or by the name in a certificate, below a prefix of keys and group
names. A client that matches several entries has the rights of all of them. For example:

  [{"name": "trainer", "prefix": "jobs/a/", "write": true},
   {"secret_file": "viewer.secret", "prefix": "jobs/"}]

PyTorch processes find a TCPStore on the same port (--torch): torchrun with --rdzv-endpoint,
init_process_group, vLLM. Their protocol has no authentication. A store that requires a secret, a
certificate or TLS accepts them only below a prefix that is opened to the protocol:

  [{"protocol": "torch", "prefix": "python/", "write": true}]

Sizes are bytes, or 64KiB, 16MiB, 4GiB.`,
		Example: `  muster serve
  muster serve --data /var/lib/muster
  muster serve --etcd etcd://10.0.0.1:2379,10.0.0.2:2379/jobs --listen 10.0.0.5:7070 \
    --secret-file secret
  muster serve --http 127.0.0.1:8080   # with the status page
  muster serve --listen 127.0.0.1:0 --log-level debug
  muster serve --listen 10.0.0.5:7070 --secret-file secret
  muster serve --listen 10.0.0.5:7070 --tls-cert tls/server.pem --tls-key tls/server-key.pem \
    --tls-ca tls/ca.pem --require-client-cert
  muster serve --listen 10.0.0.5:7070 --insecure   # all hosts that reach it have access`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7070", "`address` (host:port) to listen at")
	f.StringVar(&o.data, "data", "", "`directory` of the store, created if missing; without it the store is in memory")
	f.BoolVar(&o.insecure, "insecure", false, "allow unauthenticated access from other hosts")
	f.BoolVar(&o.stacks, "stacks", false, "allow every client with access to the whole store (--access allows others) to see the stacks of ranks (who --stacks)")
	f.DurationVar(&o.drain, "drain", 10*time.Second, "time for clients to disconnect after the first signal")
	f.StringVar(&o.health, "health", "", "`address` (host:port) for health checks over HTTP, without authentication")
	f.StringVar(&o.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	f.BoolVar(&o.untilEOF, "until-eof", false, "stop, as by a signal, when standard input ends: with the process that holds its other end")
	o.replica.register(cmd)
	o.page.register(cmd, "")
	o.torch.register(cmd)
	o.who.register(cmd)
	o.limit.register(cmd)
	return cmd
}

func (o *serving) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	sigs := make(chan os.Signal, 2)
	notify(sigs, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(sigs)
	if o.untilEOF {
		go notifyEOF(cmd.InOrStdin(), sigs)
	}
	health, err := o.serveHealth()
	if err != nil {
		return err
	}
	defer health.close()
	o.limitMemory()
	if o.replica.cluster != nil {
		return o.replicate(cmd, health, sigs)
	}
	h, err := startHost(o.listen, o.hostOptions)
	if err != nil {
		return listenError("--listen", o.listen, err)
	}
	defer h.close()
	shown, err := o.show(h.url(), h.memory)
	if err != nil {
		return err
	}
	defer shown.close()
	health.serves(h.memory)
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), h.url()); err != nil {
		return err
	}
	o.logger.Info("serving", "store", h.url(), "pid", os.Getpid())
	select {
	case err := <-h.ended:
		return err
	case <-h.memory.Failed():
		return &exit{code: exitFailed, text: "the store has failed: " + h.memory.Err().Error(), err: h.memory.Err()}
	case sig := <-sigs:
		health.ends()
		return o.stop(h, sig, sigs)
	}
}

// show starts the status page of e, which clients reach at a URL. The page is nil without --http.
func (o *serving) show(url string, e store.Engine) (*page, error) {
	o.page.store = url
	shown, err := o.page.start(store.New(e), o.tls)
	if shown != nil {
		o.logger.Info("showing", "page", shown.url())
	}
	return shown, err
}

// endOfInput is a signal for --until-eof.
type endOfInput struct{}

func (endOfInput) String() string { return "end of standard input" }
func (endOfInput) Signal()        {}

// notifyEOF sends a signal when in ends. It returns then, or at the end of the process.
func notifyEOF(in io.Reader, sigs chan<- os.Signal) {
	_, _ = io.Copy(io.Discard, in)
	select {
	case sigs <- endOfInput{}:
	default: // two signals wait already
	}
}

// limitMemory sets the memory limit of the garbage collector to the sum of the store's limits,
// unless GOMEMLIMIT is set. By default, garbage may grow to the size of the live data.
func (o *serving) limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(o.limits.Bytes + o.limits.Held + o.serverLimits.Buffers)
	}
}

// serveHealth starts the server for --health. It returns nil if the flag is not set.
func (o *serving) serveHealth() (*health, error) {
	if o.health == "" {
		return nil, nil
	}
	h, err := startHealth(o.health)
	if err != nil {
		return nil, listenError("--health", o.health, err)
	}
	o.logger.Info("serving health checks", "health", "http://"+h.addr.String()+"/healthz")
	return h, nil
}

// check validates what the flags alone cannot, and sets the options that follow from it.
func (o *serving) check(cmd *cobra.Command) error {
	logger, err := newLogger(cmd, o.logLevel)
	if err != nil {
		return err
	}
	o.logger = logger
	if err := checkListen(o.listen, "7070"); err != nil {
		return usagef(cmd, "--listen %s: %v", o.listen, err)
	}
	if err := o.replica.check(cmd, o); err != nil {
		return err
	}
	if o.health != "" {
		if err := checkListen(o.health, "8081"); err != nil {
			return usagef(cmd, "--health %s: %v", o.health, err)
		}
	}
	if o.limits, o.serverLimits, err = o.limit.check(cmd); err != nil {
		return err
	}
	if o.tls, o.access, err = o.who.check(cmd, o.stacks); err != nil {
		return err
	}
	if o.protocol, err = o.torch.check(cmd); err != nil {
		return err
	}
	return o.page.check(cmd, len(o.access) > 0 || o.who.files.RequireClient, o.tls != nil, o.insecure)
}

// checkListen checks an address; port is an example for its error.
func checkListen(addr, port string) error {
	_, given, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("it is not host:port, as 127.0.0.1:%s", port)
	}
	if n, err := strconv.Atoi(given); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("port %q is not a number from 0 to 65535", given)
	}
	return nil
}

func (o *serving) stop(h *host, sig os.Signal, sigs <-chan os.Signal) error {
	o.logger.Info("stopping", "signal", sig, "drain", o.drain)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-sigs:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := h.drain(ctx, o.drain); err != nil {
		o.logger.Warn("stopped with clients connected", "err", err)
		return nil
	}
	o.logger.Info("stopped")
	return nil
}
