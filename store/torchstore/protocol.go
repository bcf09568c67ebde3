package torchstore

import (
	"context"
	"net"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// Protocol lets processes that use PyTorch's TCPStore into a store.Server. Its zero value is for torch 2.2 and later.
//
// A client sees the entries of the store, and its changes are everybody's. What it waits for costs no one else anything, and ends with its
// connection. MULTI_SET and MULTI_GET are so many single operations; others may see them half done.
type Protocol struct {
	// Older is a generation whose clients are let in too, A or B: those two cannot be told from each other.
	Older tcpstore.Generation
	// Limits bound what a client may send. Value is 16 MiB if it is zero; the store has its own limits too.
	Limits tcpstore.Limits
}

// Name implements store.Protocol: it is "torch".
func (p *Protocol) Name() string { return "torch" }

// Match implements store.Protocol.
func (p *Protocol) Match(first []byte) (yes, more bool) {
	n := min(len(first), len(tcpstore.Preface))
	switch {
	case n == 0: // the second connection of such a client says nothing unless it watches a key
		return p.Older == tcpstore.A, true
	case string(first[:n]) == tcpstore.Preface[:n]:
		return n == len(tcpstore.Preface), n < len(tcpstore.Preface)
	}
	_, _, err := p.Older.NextRequest(first[:1], new(tcpstore.Cursor), p.Limits)
	return p.Older != 0 && err == nil, false
}

// ServeConn implements store.Protocol.
func (p *Protocol) ServeConn(ctx context.Context, c net.Conn, s *store.Store) error {
	limits := p.Limits
	if limits.Value == 0 {
		limits.Value = wire.MaxValue
	}
	peer := &peer{protocol: p, store: s, in: inbox{conn: c, limits: limits}, out: outbox{conn: c}}
	return peer.serve(ctx)
}

var _ store.Protocol = (*Protocol)(nil)
