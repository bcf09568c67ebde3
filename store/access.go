package store

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/wire"
)

// Access is what the holder of a secret or of a client certificate, or the peers of another
// protocol, may do. A peer that matches several has the rights of all of them.
type Access struct {
	Secret []byte // at least 16 bytes, see ReadSecret; or:
	Name   string // of a client certificate: its common name, or one of its DNS names or URIs; or:
	// Protocol is the name of Server.Protocol. Its peers are not authenticated, and see the
	// part of the store below Prefix as the whole store.
	Protocol string
	Prefix   string // of keys and group names, as a string: "a" covers "ab", "a/" does not; "" covers all
	Write    bool   // may change entries and join groups; otherwise read only
	Stacks   bool   // may see the stacks of ranks of groups below Prefix (Store.Stacks)
}

// checkAccess rejects entries that match no peer of s, or more than one kind.
func (s *Server) checkAccess() error {
	for i, a := range s.Access {
		if why := s.accessFault(a, s.Access[:i]); why != "" {
			return &Error{Op: "access", Key: strconv.Itoa(i), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: why}
		}
	}
	return nil
}

// accessFault returns what is wrong with a, which follows others, or "".
func (s *Server) accessFault(a Access, others []Access) string {
	speaks := "no other protocol"
	if s.Protocol != nil {
		speaks = strconv.Quote(s.Protocol.Name())
	}
	switch {
	case a.Secret == nil && a.Name == "" && a.Protocol == "":
		return "neither a secret nor a name: no peer matches it"
	case a.Secret != nil && a.Name != "":
		return "a secret and a name: use two entries"
	case a.Protocol != "" && a.Stacks:
		return "stacks for a protocol, whose peers cannot ask for them"
	case a.Protocol != "" && (a.Secret != nil || a.Name != ""):
		return "a protocol, and a secret or a name, which its peers cannot present: use two entries"
	case a.Secret != nil:
		return handshake.BadSecret(a.Secret)
	case a.Name != "" && (s.TLS == nil || s.TLS.ClientAuth < tls.VerifyClientCertIfGiven):
		return "it is for a client certificate, and the server asks for none: set TLS with the CA that signs them"
	case a.Protocol != "" && strconv.Quote(a.Protocol) != speaks:
		return fmt.Sprintf("this server does not speak %q: it speaks %s", a.Protocol, speaks)
	case a.Protocol != "" && slices.ContainsFunc(others, func(o Access) bool { return o.Protocol == a.Protocol }):
		return fmt.Sprintf("there is another prefix for %q: its peers see one", a.Protocol)
	}
	return ""
}

// credentials returns what admits a peer according to accesses, by their indexes.
func credentials(accesses []Access) (admit []handshake.Credential) {
	for _, a := range accesses {
		admit = append(admit, handshake.Credential{Secret: a.Secret, Name: a.Name})
	}
	return admit
}

// right is the right to read, or to read and write, below a prefix.
type right struct {
	prefix string
	write  bool
}

// rights are what a peer may do. nil means everything, and rights{} nothing.
type rights []right

// rightsOf returns the rights of the matched accesses together.
func rightsOf(accesses []Access, matched []int) rights {
	r := rights{}
	for _, i := range matched {
		one := right{accesses[i].Prefix, accesses[i].Write}
		if one == (right{"", true}) {
			return nil
		}
		if !slices.Contains(r, one) {
			r = append(r, one)
		}
	}
	return r
}

// refuse returns why a peer with rights r may not make req, or "".
func (r rights) refuse(req *wire.Request) string {
	if r == nil {
		return ""
	}
	switch req.Op.Right() {
	case wire.NeedNothing:
		return ""
	case wire.NeedRead:
		return r.refuseKeys("read", req.Key)
	case wire.NeedReads:
		return r.refuseKeys("read", req.Keys...)
	case wire.NeedWrite:
		return r.refuseKeys("write", req.Key)
	case wire.NeedWrites:
		return r.refuseKeys("write", req.Keys...)
	case wire.NeedBelow:
		if r.cover(req.Key, false) {
			return ""
		}
		return r.denied("read below " + quoted(req.Key))
	case wire.NeedJoin:
		if req.Group.Generation != 0 || r.cover(req.Group.Group, true) { // survivors are members already
			return ""
		}
		return r.denied("join the group " + quoted(req.Group.Group))
	case wire.NeedAnything:
		if slices.ContainsFunc(r, func(one right) bool { return one.write }) {
			return ""
		}
	}
	return r.denied(req.Op.String())
}

// refuseKeys returns why a peer may not read, or write, one of keys, or "".
func (r rights) refuseKeys(verb string, keys ...string) string {
	for _, k := range keys {
		if !r.cover(k, verb == "write") {
			return r.denied(verb + " " + quoted(k))
		}
	}
	return ""
}

// cover reports whether r has the right to name and all names that begin with it.
func (r rights) cover(name string, write bool) bool {
	return slices.ContainsFunc(r, func(one right) bool { return (one.write || !write) && strings.HasPrefix(name, one.prefix) })
}

func (r rights) denied(to string) string {
	return fmt.Sprintf("no right to %s: this peer may %s", to, r)
}

// maxNamedRights is how many rights a message names.
const maxNamedRights = 4

func (r rights) String() string {
	if r == nil {
		return "read and write everything"
	}
	if len(r) == 0 {
		return "do nothing"
	}
	var parts []string
	for i, one := range r {
		if i == maxNamedRights {
			parts = append(parts, fmt.Sprintf("%d more", len(r)-i))
			break
		}
		parts = append(parts, one.String())
	}
	return strings.Join(parts, ", and ")
}

func (one right) String() string {
	verb := "read"
	if one.write {
		verb = "write"
	}
	if one.prefix == "" {
		return verb + " everything"
	}
	return verb + " below " + quoted(one.prefix)
}

func quoted(s string) string { return strconv.Quote(clip(s)) }

// encode encodes r for the store behind a relay; nil is everything.
func (r rights) encode() []byte {
	if r == nil {
		return nil
	}
	parts := [][]byte{}
	for _, one := range r {
		verb := "r"
		if one.write {
			verb = "w"
		}
		parts = append(parts, []byte(verb+one.prefix))
	}
	return wire.AppendParts(nil, parts)
}

// maxRights is how many rights a relay may give to one of its peers: the store compares each key with
// them. With its name and its token they are a hello of at most handshake.MaxFrame bytes.
const maxRights = 64

// parseRights parses the result of encode.
func parseRights(b []byte) (rights, error) {
	if b == nil {
		return nil, nil
	}
	bad := fmt.Errorf("%w: malformed rights", ErrProtocol)
	if len(b) < 4 {
		return nil, bad
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > maxRights {
		return nil, fmt.Errorf("%w: %d rights of a peer, the limit is %d", wire.ErrTooLarge, n, maxRights)
	}
	parts, err := wire.ParseParts(b, n)
	if err != nil {
		return nil, bad
	}
	r := rights{}
	for _, p := range parts {
		if len(p) == 0 || p[0] != 'r' && p[0] != 'w' {
			return nil, bad
		}
		r = append(r, right{string(p[1:]), p[0] == 'w'})
	}
	return r, nil
}
