package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/spf13/cobra"
)

// pageFlags are the flags of the status page: its address, and access to it.
type pageFlags struct {
	addr, secretFile string
	secret           []byte
	pprof            bool
	store            string // its URL, as the page shows it
}

func (p *pageFlags) register(cmd *cobra.Command, addr string) {
	f := cmd.Flags()
	f.StringVar(&p.addr, "http", addr, "`address` (host:port) of the status page; /metrics there is for Prometheus")
	f.StringVar(&p.secretFile, "http-secret-file", "", "`file` with the password of the status page; any user name is accepted")
	f.BoolVar(&p.pprof, "http-pprof", false, "serve profiles of this process at /debug/pprof/ of the page")
}

// check validates the flags and reads the files they name. If the store requires authentication,
// its page requires it too, and so does a page that other hosts can reach.
func (p *pageFlags) check(cmd *cobra.Command, guarded, encrypted, insecure bool) error {
	if p.addr == "" {
		if p.secretFile != "" {
			return usagef(cmd, "--http-secret-file is for --http")
		}
		if p.pprof {
			return usagef(cmd, "--http-pprof is for --http")
		}
		return nil
	}
	if err := checkListen(p.addr, "8080"); err != nil {
		return usagef(cmd, "--http %s: %v", p.addr, err)
	}
	if p.secretFile != "" {
		var err error
		if p.secret, err = readSecret("--http-secret-file", p.secretFile); err != nil {
			return err
		}
	}
	local := link.IsLoopback(p.addr)
	switch {
	case insecure:
		return nil
	case guarded && p.secret == nil:
		return p.refusal("this store requires authentication, and its page would show its data to all users: set a password (--http-secret-file)")
	case !local && p.secret == nil:
		return p.refusal("all hosts that reach it would see its data: set --http to 127.0.0.1, with ssh -L or a proxy" + overTLS(cmd, ", or set a password (--http-secret-file) and TLS (--tls-cert)"))
	case !local && !encrypted:
		return p.refusal("its password could be read on the network: set --http to 127.0.0.1, with ssh -L or a proxy" + overTLS(cmd, ", or set --tls-cert"))
	}
	return nil
}

// overTLS returns advice that applies only to serve: the other commands have no certificate for the
// page.
func overTLS(cmd *cobra.Command, advice string) string {
	if cmd.Name() != "serve" {
		return ""
	}
	return advice
}

func (p *pageFlags) refusal(why string) error {
	return &exit{code: exitFailed, text: fmt.Sprintf("refusing to show a page at %s: %s; or add --insecure in a trusted network", p.addr, why)}
}

// readTime is how long a client may take to read an answer. A profile may take as long as
// requested, up to this limit.
const readTime = 2 * time.Minute

// page serves the status page of a store over HTTP, until close.
type page struct {
	http http.Server
	addr net.Addr
	tls  bool
}

// start listens at p.addr and shows s there. Without an address it returns nil.
func (p *pageFlags) start(s *store.Store, files *store.TLSFiles) (*page, error) {
	if p.addr == "" {
		return nil, nil
	}
	l, err := store.Listen(context.Background(), p.addr)
	if err != nil {
		return nil, listenError("--http", p.addr, err)
	}
	g := &page{addr: l.Addr()}
	if files != nil {
		// no client CA: a client that has the password needs no certificate
		own := store.TLSFiles{Cert: files.Cert, Key: files.Key, Logger: files.Logger}
		config, err := own.Server()
		if err != nil {
			_ = l.Close()
			return nil, err
		}
		l, g.tls = tls.NewListener(l, config), true
	}
	g.http = http.Server{Handler: p.guard(p.handler(s)), ReadTimeout: askTime, WriteTimeout: readTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	if files != nil && files.Logger != nil { // log failed TLS handshakes like everything else
		g.http.ErrorLog = slog.NewLogLogger(files.Logger.Handler(), slog.LevelWarn)
	}
	go func() { _ = g.http.Serve(l) }()
	return g, nil
}

// handler returns the handler of everything at the page's address.
func (p *pageFlags) handler(s *store.Store) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", status.Handler(s, status.Options{Address: p.store, Version: version()}))
	mux.Handle("GET /metrics", metrics.Handler(s))
	if p.pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (g *page) url() string {
	if g.tls {
		return "https://" + g.addr.String() + "/"
	}
	return "http://" + g.addr.String() + "/"
}

func (g *page) close() {
	if g != nil {
		_ = g.http.Close()
	}
}

// guard requires the password, which is too long to be guessed (handshake.BadSecret). Without a password it serves only requests that name this machine by
// an IP address or localhost, which prevents DNS rebinding: a page from another site whose host
// name resolves to 127.0.0.1 gets nothing. It also rejects cross-site requests by the browser of an
// authorized user, which could start profiles or use up the limit of open pages.
func (p *pageFlags) guard(next http.Handler) http.Handler {
	want := sha256.Sum256(p.secret)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		got := sha256.Sum256([]byte(password))
		right := subtle.ConstantTimeCompare(got[:], want[:]) == 1
		switch {
		case r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
			http.Error(w, "cross-site requests are refused", http.StatusForbidden)
		case p.secret != nil && !right:
			w.Header().Set("WWW-Authenticate", `Basic realm="muster", charset="UTF-8"`)
			http.Error(w, "password required: that of --http-secret-file", http.StatusUnauthorized)
		case p.secret == nil && !isNumber(r.Host):
			http.Error(w, "without a password (--http-secret-file) use an IP address or localhost in the URL", http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isNumber reports whether host, with or without a port, is an IP address or localhost.
func isNumber(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost"
}

// visible returns why s shows nothing, if it will not do so later either.
func visible(ctx context.Context, s *store.Store) error {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	_, err := s.Status(ctx, "")
	if errors.Is(err, store.ErrUnsupported) || errors.Is(err, store.ErrDenied) {
		return err
	}
	return nil
}

func newPage() *cobra.Command {
	var r remote
	var p pageFlags
	var insecure bool
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Serve a status page: who waits for whom",
		Long: `Serve a status page of a running store, with groups, ranks, waiting operations with the ranks that
have joined and those that are missing, the last failures. The store may be one that rank 0
hosts. The page shows what this process may read, and changes nothing. Without --store and
MUSTER_STORE it shows the store of the "muster run" of this user on this host. Ctrl-C ends it.

Use page to follow a job in a browser, or to show it to others; "muster who" prints the same in the
terminal, and "muster ps" lists the jobs.

The first line on standard output is the page's address. The page requires a password beyond
loopback, and for a store that requires a secret or a certificate.`,
		Example: `  muster page --store muster://10.0.0.5:7070
  muster page --store muster://$MASTER_ADDR:$MASTER_PORT --http 127.0.0.1:0
  muster page --store muster://10.0.0.5:7070/jobs/a   # only what is below a prefix`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.findOne(); err != nil {
				return err
			}
			if err := r.check(cmd); err != nil {
				return err
			}
			if err := p.check(cmd, r.proves(), false, insecure); err != nil {
				return err
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				if err := visible(ctx, s); err != nil {
					return err
				}
				ctx, stop := untilSignal(ctx) // before anyone can see that the page is there
				defer stop()
				p.store = redacted(r.url)
				g, err := p.start(s, nil)
				if err != nil {
					return err
				}
				defer g.close()
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), g.url()); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			})
		},
	}
	r.flags(cmd, 0)
	p.register(cmd, "127.0.0.1:8080")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "serve the page beyond loopback without a password and TLS")
	return cmd
}
