package tcpstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
)

// Protocol lets processes that use PyTorch's TCPStore connect to a store.Server. Its zero value is
// for torch 2.2 and later. A Protocol is for one Server: its clients meet in barriers, and those of
// another Protocol do not.
//
// A client sees the entries of the store, and all clients see its changes. A wait delays no other
// client, and ends with its connection. MULTI_SET and MULTI_GET are sequences of single operations;
// other clients may see them partly done. The server ends the connection of a client that reads
// none of its replies, or that stops in the middle of a message of more than 64 KiB, after 10
// seconds. Until then the replies (of a MULTI_GET at most 1 MiB and one value) or the partial
// message use the server's memory, up to ServerLimits.Buffers for all clients together, and delay no
// other client.
type Protocol struct {
	// TTL sets the time to live of entries that clients create, since the protocol has none. The
	// first rule whose prefix matches the name applies. SET and COMPARE_SET restart it. It does not
	// apply to queues: an element stays until it is popped.
	TTL []Rule
	// Ranks are patterns of names. {rank}, which occurs once, matches all decimal digits at that
	// place, at least one. A * at the end matches any suffix, also an empty one and one with
	// slashes. All else matches itself. "ready/{rank}" matches ready/7, but not ready/7/a or
	// ready/x; "{rank}/*" matches 7/, 7/a and 7/a/b, but not 7. The first pattern that matches
	// applies. Names are those of the store: with PrefixStore("p", …) they begin with p/.
	//
	// A client that changes such a key has that rank. Once the last connection of a rank has ended,
	// all clients that wait for a missing key of it get an error: PyTorch raises at once, instead
	// of at its timeout. The protocol has no goodbye, so a rank that was done also counts as
	// failed. A rank that reconnects is no longer failed; and when all ranks have disconnected, the
	// next one begins another run, in which none is failed.
	Ranks []string
	// Sessions are prefixes of keys that end with the client that has set them last, by SET or
	// MULTI_SET. They are compared with the keys that clients send, which begin with "/".
	//
	// The store deletes the keys 30 seconds after the end of the connection, or within a second of
	// the end of the client's process, if that is known: it runs on this host, which is Linux, and
	// was connected for two seconds. Until then the connection counts in ServerLimits. Keys that were
	// set again by another connection or a Go client, or changed by COMPARE_SET, are not deleted.
	// ADD and APPEND keep the owner of a key, as they keep its TTL, but own nothing. All keys end
	// when this process does, or its session in the store.
	//
	// A connection with such keys has one lease of the store. A SET beyond store.Limits.Leases ends
	// its connection.
	Sessions []string

	ranks     ranks
	barriers  barriers
	loops     loops
	processes processes
}

// Rule applies to the names that begin with Prefix; "" matches all names.
type Rule struct {
	Prefix string
	TTL    time.Duration
}

// Check returns an error that says what is wrong with p, or nil.
func (p *Protocol) Check() error {
	for _, r := range p.TTL {
		if r.TTL <= 0 {
			return fmt.Errorf("tcpstore: the TTL of %q is %v", r.Prefix, r.TTL)
		}
	}
	return cmp.Or(checkPatterns(p.Ranks), checkSessions(p.Sessions))
}

// ttl returns the time to live of an entry that a client creates.
func (p *Protocol) ttl(sent string) time.Duration {
	name, users := strings.CutPrefix(sent, tcpwire.KeyPrefix)
	for _, r := range p.TTL {
		if users && strings.HasPrefix(name, r.Prefix) {
			return r.TTL
		}
	}
	return 0
}

// Name implements store.Protocol: it is "torch".
func (p *Protocol) Name() string { return "torch" }

// Match implements store.Protocol. It also matches clients before torch 2.2, which ServeConn refuses
// with the reason.
func (p *Protocol) Match(first []byte) (yes, more bool) {
	n := min(len(first), len(tcpwire.Preface))
	if string(first[:n]) == tcpwire.Preface[:n] {
		return n == len(tcpwire.Preface), n < len(tcpwire.Preface)
	}
	return tcpwire.IsOlder(first)
}

var errOlder = errors.New("the client is of a torch before 2.2, whose protocol this server does not speak: update torch there")

// ServeConn implements store.Protocol.
func (p *Protocol) ServeConn(ctx context.Context, v *store.ProtocolConn) error {
	if err := p.Check(); err != nil {
		return err
	}
	if older, _ := tcpwire.IsOlder(v.First); older {
		return errOlder
	}
	peer := newPeer(ctx, p, v)
	defer peer.endSession(ctx) // after the loop is given back, since it may take long
	p.processes.enter(peer)
	defer p.processes.leave(ctx, peer)
	var loop *transport.Loop
	if _, ok := v.Conn.(*net.TCPConn); ok && v.Immediate {
		if loop = p.loops.borrow(); loop != nil {
			defer p.loops.giveBack()
		}
	}
	return peer.serve(ctx, loop)
}

var _ store.Protocol = (*Protocol)(nil)
