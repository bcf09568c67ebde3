package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// connFlags are the flags of serve and relay for limits of connections, with their defaults.
type connFlags struct {
	buffers size
	server  store.ServerLimits
}

func (c *connFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&c.server.Conns, "max-conns", 65536, "maximum number of connections")
	f.IntVar(&c.server.PerAddr, "max-conns-per-addr", 16384, "maximum number of connections from one IP address")
	c.buffers = 4 << 30
	f.Var(&c.buffers, "max-buffers", "maximum size of partial frames and waiting answers of all peers; beyond it peers are disconnected; at least 64MiB")
}

// leastBuffers is the least that a server has for buffers: less is raised to it.
const leastBuffers = size(64 << 20)

// check validates the flags and returns the limits.
func (c *connFlags) check(cmd *cobra.Command) (store.ServerLimits, error) {
	if c.buffers < leastBuffers {
		return c.server, usagef(cmd, "--max-buffers %v must be at least %v", &c.buffers, new(leastBuffers))
	}
	c.server.Buffers = int64(c.buffers)
	return c.server, checkPositive(cmd, "max-conns", "max-conns-per-addr")
}

// limitFlags are the flags of serve for limits, with their defaults.
type limitFlags struct {
	connFlags
	live        livenessFlag
	bytes, held size
	limits      store.Limits
}

func (l *limitFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	l.bytes, l.held = 4<<30, 4<<30
	f.Var(&l.bytes, "max-bytes", "maximum size of keys and values; beyond it writes are refused, reads and deletes work")
	f.Var(&l.held, "max-held", "maximum size of waiting calls, votes, messages and group members of all peers, half of it for one peer; beyond it such calls are refused")
	f.IntVar(&l.limits.Keys, "max-keys", 16<<20, "maximum number of keys")
	f.IntVar(&l.limits.History, "history", 8192, "number of changes that watch --from can go back")
	l.connFlags.register(cmd)
	l.live.register(cmd)
	f.DurationVar(&l.server.ReconnectTimeout, "reconnect-timeout", 500*time.Millisecond, "time for a client to resume its session after its connection broke, before its ranks have failed")
}

// check validates the flags and returns the limits.
func (l *limitFlags) check(cmd *cobra.Command) (store.Limits, store.ServerLimits, error) {
	if _, err := l.connFlags.check(cmd); err != nil {
		return l.limits, l.server, err
	}
	if err := checkPositive(cmd, "max-bytes", "max-held", "max-keys", "history", "reconnect-timeout"); err != nil {
		return l.limits, l.server, err
	}
	if err := l.live.check(cmd); err != nil {
		return l.limits, l.server, err
	}
	l.server.LivenessTimeout = l.live.timeout
	l.limits.Bytes, l.limits.Held, l.limits.HeldOf = int64(l.bytes), int64(l.held), int64(l.held)/2
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
			return nil, nil, &exit{code: exitFailed, text: "--access " + a.list + ": " + said(err), err: err}
		}
	}
	if a.secret != "" {
		secret, err := readSecret("--secret-file", a.secret)
		if err != nil {
			return nil, nil, err
		}
		access = append(access, store.Access{Secret: secret, Write: true, Stacks: stacks})
	}
	return files, access, nil
}

// readSecret reads the secret in the file that a flag names.
func readSecret(flag, file string) ([]byte, error) {
	secret, err := store.ReadSecret(file)
	if err != nil {
		return nil, &exit{code: exitFailed, text: flag + ": " + said(err), err: err}
	}
	return secret, nil
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
