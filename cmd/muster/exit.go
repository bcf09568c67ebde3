package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

// The exit codes of the process; exitCodesTopic documents them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitTimeout     = 4
	exitUnavailable = 5
	exitNotRunnable = 126 // of run, as in shells
	exitNoProgram   = 127
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "Exit codes", Long: `Exit codes:

  0    success
  1    failure: the line on standard error says why; doctor: a problem was found
  2    wrong usage: unknown flag, malformed address, missing argument
  3    get: there is no such key
  4    --timeout has passed; run: too few nodes or workers for --join-timeout
  5    the store could not be reached, or went away and did not return within --timeout

run exits with the exit code of the first rank that failed, or 128 plus the number of the
signal that killed it (143 is SIGTERM), with 141 if the reader of its output has gone away, and with

  126  if the program cannot be executed
  127  if there is no such program

gather exits with 128 plus the number of the signal that ended it.`}
}

func environmentTopic() *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "The variables that muster reads and sets", Long: `Variables that muster reads:

  MUSTER_STORE         URL of the store, unless --store is given; run gives its ranks a prefix
                       there, the name of the job
  MUSTER_SECRET_FILE   file with its secret, unless --secret-file is given; run hosts with it
  MUSTER_TLS_CA        CA bundle (PEM) that verifies its certificate, unless --tls-ca is given
  MUSTER_TLS_CERT      the client's certificate (PEM), unless --tls-cert is given
  MUSTER_TLS_KEY       the key of that (PEM), unless --tls-key is given
  NO_COLOR             not empty: no colors; there are none either if the output is no terminal

Variables that pgroup.FromEnv reads; run passes on all variables that it has:

  MUSTER_TRACE         directory for a trace of each rank; see "muster trace"
  MUSTER_NAME          name of the group; default world
  MUSTER_TIMEOUT       time for an operation whose context has no deadline, such as 30s
  MUSTER_EXPIRY        time for which a message that no rank receives is kept, such as 1h
  MUSTER_HOST          name of this node: ranks of one node share memory; default: detected
  MUSTER_SHARED_MEMORY off: ranks of one node use the store and TCP; auto (default): shared memory,
                       if it takes at most an eighth of the memory that is left
  MUSTER_INSECURE      1: rank 0 may listen beyond loopback without a secret or certificates

And that serve and run read too, unless --liveness-timeout is given:

  MUSTER_LIVENESS_TIMEOUT   how long a peer may be silent before it has failed, such as 30s; default 10s

That lock sets for its command:

  MUSTER_LOCK_TOKEN    fencing token: higher than that of each earlier holder of the lock

Read by every process that serves a store:

  MUSTER_NO_IO_URING   not empty: use epoll alone, and not io_uring (Linux 5.18 and later)

Variables that run sets for each rank:

  RANK, LOCAL_RANK               0 to n-1
  WORLD_SIZE, LOCAL_WORLD_SIZE   n
  GROUP_RANK, GROUP_WORLD_SIZE   the place of this node, and the number of nodes
  MASTER_ADDR, MASTER_PORT       where the ranks meet
  MUSTER_STORE                   URL of the store, which run hosts unless one is given
  MUSTER_RUN                     id of this run; ranks of different runs never join one group
  TORCHELASTIC_RESTART_COUNT     restarts of the job so far

pgroup.FromEnv reads them, and those of torchrun, Open MPI, Slurm and Kubernetes.

Variables that run --elastic sets for each worker instead:

  MUSTER_STORE                   URL of the store
  MUSTER_JOB                     name of the job in the store
  MUSTER_WORKER                  ID of the worker, another one each time that it starts
  MUSTER_ELASTIC                 fewest and most workers of a view, MIN:MAX
  MUSTER_LEASE                   time without the store after which the worker counts as failed
  LOCAL_RANK, LOCAL_WORLD_SIZE   its place on this node, and the number of places`}
}

// exit is an error together with the exit code of the process. Its text may be empty.
type exit struct {
	code int
	text string
	err  error // the cause, for errors.Is
}

func (e *exit) Error() string { return e.text }
func (e *exit) Unwrap() error { return e.err }

// usagef returns the error of a wrong command line.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &exit{code: exitUsage, text: fmt.Sprintf(format, args...) + fmt.Sprintf("; see %q", cmd.CommandPath()+" --help")}
}

// explain returns the line to print for err, and the exit code.
func explain(err error) (line string, code int) {
	if e, ok := errors.AsType[*exit](err); ok {
		return oneLine(e.text), e.code
	}
	code = exitFailed
	if e, ok := errors.AsType[*storeError](err); ok {
		code = e.exitCode()
	}
	return oneLine(said(err)), code
}

var packageName = regexp.MustCompile("^(safetensors|store|tcpstore|timeline): ")

// said returns the text of an error without the name of its package.
func said(err error) string { return packageName.ReplaceAllString(err.Error(), "") }

// oneLine joins the lines of an error that wraps several, and escapes control characters: errors
// contain text from files and servers.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), ": ")
	if printable(s) == s {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// storeError is an error of the store at url. Its text includes a remedy.
type storeError struct {
	url string
	err error
}

func (e *storeError) Unwrap() error { return e.err }

func (e *storeError) exitCode() int {
	inner, _ := errors.AsType[*store.Error](e.err)
	switch {
	// the URL is wrong
	case inner != nil && inner.Op == "open" && errors.Is(e.err, store.ErrInvalid):
		return exitUsage
	case errors.Is(e.err, store.ErrNotFound), errors.Is(e.err, store.ErrExpired):
		return exitNotFound
	case errors.Is(e.err, store.ErrDenied), errors.Is(e.err, store.ErrInvalid):
		return exitFailed
	case isUnavailable(e.err):
		return exitUnavailable
	case errors.Is(e.err, context.DeadlineExceeded):
		return exitTimeout
	}
	return exitFailed
}

func (e *storeError) Error() string {
	inner, _ := errors.AsType[*store.Error](e.err)
	switch e.exitCode() {
	case exitNotFound:
		return fmt.Sprintf("there is no key %q: --wait waits for it, \"muster keys\" lists what is there", inner.Key)
	case exitUnavailable:
		return e.unavailable(inner)
	case exitTimeout:
		return fmt.Sprintf("timed out: %s; --timeout gives it more time", e.late(inner))
	}
	if inner != nil && inner.Op == "dial" && errors.Is(e.err, store.ErrDenied) {
		text := fmt.Sprintf("access denied by the store at %s: %s", e.addr(), inner.Detail)
		if remedy := access(e.url, inner.Reason); remedy != "" {
			text += ": " + remedy
		}
		return text
	}
	return said(e.err)
}

// ofStore replaces flags with the parameters of an etcd's URL, whose flags are for TLS to etcd.
var ofStore = strings.NewReplacer(
	"--tls-ca (MUSTER_TLS_CA)", "store-ca in the URL",
	"--tls-cert and --tls-key (MUSTER_TLS_CERT, MUSTER_TLS_KEY)", "store-cert and store-key in the URL",
	"--tls-cert (MUSTER_TLS_CERT)", "store-cert in the URL",
	"--tls-ca, --tls-cert and --tls-key", "store-ca, store-cert and store-key in the URL",
)

// remedies are which settings to use, by the reason why a store denied access.
var remedies = map[wire.Reason]string{
	wire.ReasonNoTLS:             "set --tls-ca (MUSTER_TLS_CA)",
	wire.ReasonTLS:               "leave out --tls-ca, --tls-cert and --tls-key",
	wire.ReasonNoCertificate:     "set --tls-cert and --tls-key (MUSTER_TLS_CERT, MUSTER_TLS_KEY)",
	wire.ReasonCertificate:       "check --tls-cert (MUSTER_TLS_CERT)",
	wire.ReasonNoSecret:          "set --secret-file (MUSTER_SECRET_FILE)",
	wire.ReasonSecret:            "check --secret-file (MUSTER_SECRET_FILE)",
	wire.ReasonRelay:             "check the settings of the relay",
	wire.ReasonServerCertificate: "check --tls-ca (MUSTER_TLS_CA)",
	wire.ReasonServerName:        "use a name or address that its certificate has, or make one with \"muster certs --host\"",
	wire.ReasonServerSecret:      "if that store has no secret, leave out --secret-file (MUSTER_SECRET_FILE); else check it",
}

// access returns which settings to use after the store at url denied access, or "".
func access(url string, why wire.Reason) string {
	if strings.HasPrefix(url, "etcd") {
		return ofStore.Replace(remedies[why])
	}
	return remedies[why]
}

// late describes what a call waited for that timed out.
func (e *storeError) late(inner *store.Error) string {
	switch {
	case inner != nil && inner.Op == "wait":
		keys := inner.Keys
		if len(keys) == 0 {
			keys = []string{inner.Key}
		}
		return "not there yet: " + strings.Join(keys, " ")
	case inner != nil && inner.Op == "watch":
		return "no change within the time"
	}
	return e.err.Error()
}

// isUnavailable reports whether no store answers. This includes a dial that timed out, and a call
// that ended while the client had no connection.
func isUnavailable(err error) bool {
	inner, ok := errors.AsType[*store.Error](err)
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrProtocol) || ok && (inner.Op == "dial" || inner.Reason == wire.ReasonDisconnected)
}

func (e *storeError) unavailable(inner *store.Error) string {
	addr := e.addr()
	switch {
	case inner != nil && inner.Reason == wire.ReasonRelay:
		return fmt.Sprintf("no store behind %s: %s", addr, inner.Detail)
	case errors.Is(e.err, store.ErrFull) && inner != nil && inner.Op == "dial":
		return fmt.Sprintf("the store at %s has no room: %s", addr, reason(e.err))
	case errors.Is(e.err, store.ErrProtocol):
		return fmt.Sprintf("the process that listens at %s is not a muster store (%v): check --store or MUSTER_STORE", addr, e.err)
	case inner != nil && inner.Op == "dial" && strings.HasPrefix(e.url, "tcp"):
		return fmt.Sprintf("PyTorch hosts no store at %s (%s): check --store or MUSTER_STORE; the URL of a muster store is muster://%s", addr, reason(e.err), addr)
	case errors.Is(e.err, etcdlog.ErrNoLeader):
		return fmt.Sprintf("no process serves the store in the etcd at %s: start some with \"muster serve --etcd URL\"", addr)
	case inner != nil && inner.Op == "dial" && strings.HasPrefix(e.url, "etcd"):
		return fmt.Sprintf("no etcd at %s (%s): check --store or MUSTER_STORE", addr, reason(e.err))
	case inner != nil && inner.Reason == wire.ReasonNoAnswer:
		return fmt.Sprintf("no answer from %s: what listens there hangs, or something in between lets nothing through; check --store or MUSTER_STORE", addr)
	case inner != nil && inner.Op == "dial" && isDNS(e.err):
		return fmt.Sprintf("no store at %s (%s): check the host name in --store or MUSTER_STORE", addr, reason(e.err))
	case inner != nil && inner.Op == "dial":
		return fmt.Sprintf("no store at %s (%s): start one with \"muster serve --listen %s\", or check --store or MUSTER_STORE", addr, reason(e.err), addr)
	}
	text := fmt.Sprintf("the store at %s went away (%s)", addr, reason(e.err))
	if inner != nil && inner.Reason == wire.ReasonDisconnected {
		text = fmt.Sprintf("the store cannot be reached (%s)", inner.Detail)
	} else if inner != nil && inner.Reason == wire.ReasonDisk {
		text = fmt.Sprintf("the store has failed (%s)", inner.Detail)
	}
	text += ": start it again, and then this"
	if errors.Is(e.err, store.ErrUnknown) {
		text += "; it is not known whether the change was made"
	}
	return text
}

// isDNS reports whether a host name was not resolved.
func isDNS(err error) bool {
	_, ok := errors.AsType[*net.DNSError](err)
	return ok
}

// addr returns the host and port of the store, without the parameters of its URL, which may be
// long.
func (e *storeError) addr() string {
	if u, err := url.Parse(e.url); err == nil && u.Host != "" {
		return u.Host
	}
	return e.url
}

// reason returns the innermost part of an error, which is usually the text of the operating system.
func reason(err error) string {
	s := oneLine(err.Error())
	return strings.TrimSpace(s[strings.LastIndex(s, ": ")+1:])
}
