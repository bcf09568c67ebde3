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

// The exit codes of the process; help/exit-codes.txt documents them.
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
