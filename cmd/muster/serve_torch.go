package main

import (
	"strings"
	"time"

	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// torchFlags are the flags for PyTorch processes that use the store.
type torchFlags struct {
	on                   bool
	ttl, ranks, sessions []string
}

func (o *torchFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.on, "torch", true, "let processes of PyTorch, 2.2 or later, use this store as a TCPStore")
	f.StringArrayVar(&o.ttl, "torch-ttl", nil, "`prefix=time`: TTL of keys that PyTorch sets below prefix, except queues; the first match counts")
	f.StringArrayVar(&o.sessions, "torch-session", nil, "`prefix`, with the / that PyTorch puts before each key, of keys that end with the client that has set them last: 30s after its connection, or soon after its process if that is on this host")
	f.StringArrayVar(&o.ranks, "torch-rank", nil, "`pattern` of keys with {rank} for a number, and * at the end for any text: the client that sets such a key is that rank; when it disconnects, waits for its keys fail")
}

// check validates the flags, and returns the protocol that they configure; nil: none.
func (o *torchFlags) check(cmd *cobra.Command) (store.Protocol, error) {
	if !o.on {
		if len(o.sessions) > 0 {
			return nil, usagef(cmd, "--torch-session needs --torch")
		}
		return nil, nil
	}
	p := &tcpstore.Protocol{Ranks: o.ranks, Sessions: o.sessions}
	for _, rule := range o.ttl {
		i := strings.LastIndexByte(rule, '=')
		ttl, err := time.ParseDuration(rule[i+1:])
		if i < 0 || err != nil {
			return nil, usagef(cmd, "--torch-ttl %s is not prefix=time, as job/=1h", rule)
		}
		p.TTL = append(p.TTL, tcpstore.Rule{Prefix: rule[:i], TTL: ttl})
	}
	if err := p.Check(); err != nil {
		return nil, usagef(cmd, "%s", said(err))
	}
	return p, nil
}
