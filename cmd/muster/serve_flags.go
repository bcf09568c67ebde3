package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

// connFlags are the flags of serve and relay for limits of connections, with their defaults.
type connFlags struct {
	inFlight size
	buffers  size
	server   store.ServerLimits
}

func (c *connFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&c.server.Conns, "max-conns", 65536, "maximum number of connections")
	f.IntVar(&c.server.PerAddr, "max-conns-per-addr", 16384, "maximum number of connections from one IP address")
	f.IntVar(&c.server.Handshakes, "max-handshakes", 4096, "maximum number of unfinished handshakes; beyond it the oldest one is dropped")
	c.inFlight = 64 << 20
	f.Var(&c.inFlight, "max-in-flight", "maximum size of waiting answers for one peer; beyond it the peer is disconnected")
	c.buffers = 4 << 30
	f.Var(&c.buffers, "max-buffers", "maximum size of partial frames and waiting answers of all peers; beyond it peers are disconnected; at least 64MiB")
	f.DurationVar(&c.server.Handshake, "handshake-timeout", 10*time.Second, "maximum duration of a handshake")
}

// check validates the flags and returns the limits.
func (c *connFlags) check(cmd *cobra.Command) (store.ServerLimits, error) {
	c.server.InFlight, c.server.Buffers = int(c.inFlight), int64(c.buffers)
	return c.server, checkPositive(cmd, map[string]int64{
		"max-conns": int64(c.server.Conns), "max-conns-per-addr": int64(c.server.PerAddr), "max-handshakes": int64(c.server.Handshakes),
		"max-in-flight": int64(c.inFlight), "max-buffers": int64(c.buffers), "handshake-timeout": int64(c.server.Handshake),
	})
}

func checkPositive(cmd *cobra.Command, flags map[string]int64) error {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if flags[name] < 1 {
			return usagef(cmd, "--%s must be positive", name)
		}
	}
	return nil
}

// limitFlags are the flags of serve for limits, with their defaults.
type limitFlags struct {
	connFlags
	live              livenessFlag
	key, value, bytes size
	held, heldOf      size
	limits            store.Limits
}

func (l *limitFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	number := func(p *int, name string, value int, usage string) { f.IntVar(p, name, value, usage) }
	bytes := func(p *size, name string, value int64, usage string) { *p = size(value); f.Var(p, name, usage) }
	during := func(p *time.Duration, name string, value time.Duration, usage string) {
		f.DurationVar(p, name, value, usage)
	}
	bytes(&l.key, "max-key", wire.MaxKey, "maximum size of a key; at most the default")
	bytes(&l.value, "max-value", wire.MaxValue, "maximum size of a value; at most the default")
	bytes(&l.bytes, "max-bytes", 4<<30, "maximum size of keys and values; beyond it writes are refused, reads and deletes work")
	bytes(&l.held, "max-held", 4<<30, "maximum size of waiting calls, votes, messages and group members of all peers; beyond it such calls are refused")
	bytes(&l.heldOf, "max-held-per-peer", 2<<30, "the same as --max-held, for one peer")
	number(&l.limits.Keys, "max-keys", 16<<20, "maximum number of keys")
	number(&l.limits.History, "history", 8192, "number of changes that watch --from can go back")
	number(&l.limits.Waiting, "max-waiting", 8192, "maximum number of waiting calls of one peer")
	number(&l.limits.Leases, "max-leases", 8192, "maximum number of leases of one peer")
	l.connFlags.register(cmd)
	l.live.register(cmd)
	during(&l.server.ReconnectTimeout, "reconnect-timeout", 500*time.Millisecond, "time for a client to resume its session after its connection broke, before its ranks have failed")
}

// check validates the flags and returns the limits.
func (l *limitFlags) check(cmd *cobra.Command) (store.Limits, store.ServerLimits, error) {
	if _, err := l.connFlags.check(cmd); err != nil {
		return l.limits, l.server, err
	}
	if err := checkPositive(cmd, map[string]int64{
		"max-key": int64(l.key), "max-value": int64(l.value), "max-bytes": int64(l.bytes), "max-held": int64(l.held), "max-held-per-peer": int64(l.heldOf),
		"max-keys": int64(l.limits.Keys), "history": int64(l.limits.History), "max-waiting": int64(l.limits.Waiting), "max-leases": int64(l.limits.Leases),
		"reconnect-timeout": int64(l.server.ReconnectTimeout),
	}); err != nil {
		return l.limits, l.server, err
	}
	if err := l.live.check(cmd); err != nil {
		return l.limits, l.server, err
	}
	l.server.LivenessTimeout = l.live.timeout
	for name, is := range map[string]struct {
		size
		most int64
	}{"max-key": {l.key, wire.MaxKey}, "max-value": {l.value, wire.MaxValue}} {
		if int64(is.size) > is.most {
			most := size(is.most)
			return l.limits, l.server, usagef(cmd, "--%s %s: the protocol allows at most %s", name, &is.size, &most)
		}
	}
	l.limits.Key, l.limits.Value, l.limits.Bytes = int(l.key), int(l.value), int64(l.bytes)
	l.limits.Held, l.limits.HeldOf = int64(l.held), int64(l.heldOf)
	return l.limits, l.server, nil
}

// accessFlags are the flags for authentication and authorization.
type accessFlags struct {
	files        store.TLSFiles
	secret, list string // file names
}

func (a *accessFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.secret, "secret-file", "", "`file` with a secret; clients that prove it may read and write everything")
	f.StringVar(&a.list, "access", "", "JSON `file` with the rights of clients, as above")
	f.StringVar(&a.files.Cert, "tls-cert", "", "`file` (PEM) with the server's certificate; enables TLS 1.3")
	f.StringVar(&a.files.Key, "tls-key", "", "`file` (PEM) with the key of --tls-cert")
	f.StringVar(&a.files.CA, "tls-ca", "", "CA bundle `file` (PEM) that verifies client certificates")
	f.BoolVar(&a.files.RequireClient, "require-client-cert", false, "require a client certificate")
}

// check reads the files that the flags name. stacks is a right of --secret-file.
func (a *accessFlags) check(cmd *cobra.Command, stacks bool) (files *store.TLSFiles, access []store.Access, err error) {
	t := &a.files
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return nil, nil, usagef(cmd, "--tls-cert and --tls-key go together")
	case t.CA != "" && t.Cert == "":
		return nil, nil, usagef(cmd, "--tls-ca needs --tls-cert and --tls-key")
	case t.RequireClient && t.CA == "":
		return nil, nil, usagef(cmd, "--require-client-cert needs --tls-ca, which verifies them")
	}
	if t.Cert != "" {
		files = t
	}
	if a.list != "" {
		if access, err = readAccess(a.list); err != nil {
			return nil, nil, &exit{code: exitFailed, text: "--access " + a.list + ": " + strings.TrimPrefix(err.Error(), "store: "), err: err}
		}
	}
	if a.secret != "" {
		secret, err := store.ReadSecret(a.secret)
		if err != nil {
			return nil, nil, &exit{code: exitFailed, text: "--secret-file: " + strings.TrimPrefix(err.Error(), "store: "), err: err}
		}
		access = append(access, store.Access{Secret: secret, Write: true, Stacks: stacks})
	}
	return files, access, nil
}

// accessEntry is one entry of the file that --access names.
type accessEntry struct {
	SecretFile string `json:"secret_file"` // relative to the directory of that file
	Name       string `json:"name"`
	Protocol   string `json:"protocol"`
	Prefix     string `json:"prefix"`
	Write      bool   `json:"write"`
	Stacks     bool   `json:"stacks"`
}

func readAccess(file string) (access []store.Access, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var entries []accessEntry
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&entries); err != nil {
		return nil, fmt.Errorf("not a list of {\"secret_file\", \"name\" or \"protocol\", \"prefix\", \"write\", \"stacks\"}: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is data after the list")
	}
	if len(entries) == 0 {
		return nil, errors.New("it is empty: no client would have access")
	}
	for i, e := range entries {
		a := store.Access{Name: e.Name, Protocol: e.Protocol, Prefix: e.Prefix, Write: e.Write, Stacks: e.Stacks}
		switch {
		case !oneOf(e.SecretFile, e.Name, e.Protocol):
			return nil, fmt.Errorf("entry %d needs a secret_file, a name or a protocol, one of them", i+1)
		case e.SecretFile != "":
			path := e.SecretFile
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(file), path)
			}
			if a.Secret, err = store.ReadSecret(path); err != nil {
				return nil, fmt.Errorf("entry %d: %w", i+1, err)
			}
		}
		access = append(access, a)
	}
	return access, nil
}

// oneOf reports whether exactly one of texts is not empty.
func oneOf(texts ...string) bool {
	n := 0
	for _, s := range texts {
		if s != "" {
			n++
		}
	}
	return n == 1
}
