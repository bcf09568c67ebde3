package main

import (
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/torchstore"
	"github.com/muster-pg/muster/wire/tcpstore"
	"github.com/spf13/cobra"
)

// torchNow is the first version of PyTorch whose clients identify themselves.
const torchNow = "2.2"

// torchFlags are the flags for PyTorch processes that use the store.
type torchFlags struct {
	version    string
	ttl, ranks []string
}

func (o *torchFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.version, "torch", torchNow, "oldest PyTorch `version` that may use this store as a TCPStore: 2.2, or 2.1 or 1.9 in addition; off disables it")
	f.StringArrayVar(&o.ttl, "torch-ttl", nil, "`prefix=time`: TTL of keys that PyTorch sets below prefix, except queues; the first match counts")
	f.StringArrayVar(&o.ranks, "torch-rank", nil, "`pattern` of keys with {rank} for a number, and * at the end for any text: the client that sets such a key is that rank; when it disconnects, waits for its keys fail")
}

// check validates the flags, and returns the protocol that they configure.
func (o *torchFlags) check(cmd *cobra.Command) ([]store.Protocol, error) {
	p := &torchstore.Protocol{Ranks: o.ranks}
	switch o.version {
	case "off":
		return nil, nil
	case torchNow:
	case "2.1":
		p.Older = tcpstore.B
	case "1.9":
		p.Older = tcpstore.A
	default:
		return nil, usagef(cmd, "--torch %s is none of 2.2 (and later), 2.1 (and those), 1.9 (to 2.0, and those) and off", o.version)
	}
	for _, rule := range o.ttl {
		i := strings.LastIndexByte(rule, '=')
		ttl, err := time.ParseDuration(rule[i+1:])
		if i < 0 || err != nil {
			return nil, usagef(cmd, "--torch-ttl %s is not prefix=time, as job/=1h", rule)
		}
		p.TTL = append(p.TTL, torchstore.Rule{Prefix: rule[:i], TTL: ttl})
	}
	if err := p.Check(); err != nil {
		return nil, usagef(cmd, "%s", strings.TrimPrefix(err.Error(), "torchstore: "))
	}
	return []store.Protocol{p}, nil
}
