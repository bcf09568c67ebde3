package store

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// validate rejects requests that every engine would reject, before anything is sent: a frame that
// is too large would end the connection that all calls share.
func validate(req *wire.Request) error {
	bad := func(format string, args ...any) error {
		e := &Error{Op: req.Op.String(), Code: wire.CodeTooLarge, Err: ErrTooLarge, Detail: fmt.Sprintf(format, args...)}
		e.setSubject(req)
		return e
	}
	c := &req.Group
	for _, s := range [...]string{req.Key, c.Group, c.Run, c.Channel, c.Verb, c.Type, c.Label, c.Reason} {
		if len(s) > wire.MaxKey {
			return bad("%d bytes of name, the limit is %d", len(s), wire.MaxKey)
		}
	}
	if len(req.Keys) > wire.MaxKeys {
		return bad("%d keys, the limit is %d", len(req.Keys), wire.MaxKeys)
	}
	second := max(len(req.Expect), len(req.Claim), len(req.Token)) // an operation has one of them
	total := len(req.Value) + second
	for _, k := range req.Keys {
		if len(k) > wire.MaxKey {
			return bad("a key of %d bytes, the limit is %d", len(k), wire.MaxKey)
		}
		total += len(k) + 4
	}
	if len(req.Value) > wire.MaxValue || second > wire.MaxValue {
		return bad("%d bytes of value, the limit is %d", max(len(req.Value), second), wire.MaxValue)
	}
	if total > wire.MaxValue {
		return bad("%d bytes in one request, the limit is %d", total, wire.MaxValue)
	}
	return nil
}

// clip shortens a name for errors.
func clip(s string) string {
	if len(s) > 100 {
		return s[:97] + "…"
	}
	return s
}
