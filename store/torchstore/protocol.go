package torchstore

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// Protocol lets processes that use PyTorch's TCPStore into a store.Server. Its zero value is for torch 2.2 and later. It is for one Server:
// its clients meet in barriers, and those of another one do not.
//
// A client sees the entries of the store, and its changes are everybody's. What it waits for costs no one else anything, and ends with its
// connection. MULTI_SET and MULTI_GET are so many single operations; others may see them half done. A client that reads nothing of what it asked
// for, or sends nothing more of a message of more than 64 KiB that it has begun, is given up after 10 seconds. Until then it holds what it
// has asked for, of a MULTI_GET 1 MiB and a value at most, or has sent: the server pays, and no other client.
type Protocol struct {
	// Older is a generation whose clients are let in too, A or B: those two cannot be told from each other.
	Older tcpstore.Generation
	// Limits bound what a client may send. Value is 16 MiB if it is zero; the store has its own limits too.
	Limits tcpstore.Limits
	// TTL gives entries that clients make by names of their own a time to live, which they cannot ask for: by the first rule whose
	// prefix a name has. SET and COMPARE_SET begin it anew. Queues have none: what is pushed stays until it is popped.
	TTL []Rule
	// Ranks are patterns of names: {rank}, once, is one decimal digit or more, all that there are at that place, a * at the very end is
	// anything or nothing, slashes included, and all else is itself. "ready/{rank}" is ready/7, and neither ready/7/a nor ready/x;
	// "{rank}/*" is 7/, 7/a and 7/a/b, and not 7. The first pattern that fits counts. Names are those that the store has: of
	// PrefixStore("p", …) they begin with p/.
	//
	// Who changes such a key is that rank. Once its last connection has ended, all who wait for a missing key of that rank hear it: PyTorch
	// raises an error at once, instead of at its timeout. Its clients say no goodbye, so that one that was done counts as lost too. A rank
	// that comes again is not lost any more; and when all are gone, the first that comes begins another run, in which none is lost.
	Ranks  []string
	Logger *slog.Logger // nil is silent

	ranks    ranks
	barriers barriers
	loops    loops
}

// Rule is for the names that begin with Prefix: "" is all.
type Rule struct {
	Prefix string
	TTL    time.Duration
}

// Check says what is wrong with p; nil if it can be used.
func (p *Protocol) Check() error {
	if p.Older > tcpstore.B {
		return fmt.Errorf("torchstore: generation %v is not older", p.Older)
	}
	for _, r := range p.TTL {
		if r.TTL <= 0 {
			return fmt.Errorf("torchstore: the TTL of %q is %v", r.Prefix, r.TTL)
		}
	}
	return checkPatterns(p.Ranks)
}

// ttl is that of an entry which a client makes.
func (p *Protocol) ttl(sent string) time.Duration {
	name, users := strings.CutPrefix(sent, tcpstore.KeyPrefix)
	for _, r := range p.TTL {
		if users && strings.HasPrefix(name, r.Prefix) {
			return r.TTL
		}
	}
	return 0
}

func (p *Protocol) log() *slog.Logger {
	if p.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Logger
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
func (p *Protocol) ServeConn(ctx context.Context, v *store.ProtocolConn) error {
	if err := p.Check(); err != nil {
		return err
	}
	limits := p.Limits
	if limits.Value == 0 {
		limits.Value = wire.MaxValue
	}
	peer := newPeer(ctx, p, v, limits)
	if tcp, ok := v.Conn.(*net.TCPConn); ok && v.Immediate {
		if loop := p.loops.borrow(); loop != nil {
			defer p.loops.giveBack()
			return peer.serveBy(ctx, loop, tcp)
		}
	}
	return peer.serve(ctx, v.Conn)
}

var _ store.Protocol = (*Protocol)(nil)
