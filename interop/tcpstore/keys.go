package tcpstore

import (
	"strings"

	"github.com/muster-pg/muster/internal/tcpwire"
)

const (
	// hidden is contained in all names that Python does not see.
	hidden = "\x00"
	// InitKey is the Go name of "init/", the number of clients with a world size that have joined.
	InitKey = ownPrefix + tcpwire.InitKey
	// ownPrefix precedes the keys that are not a user's.
	ownPrefix = hidden + "torch/"
)

// keyOf returns the store's key for a key of the protocol.
func keyOf(sent string) string {
	if key, users := strings.CutPrefix(sent, tcpwire.KeyPrefix); users {
		return key
	}
	return ownPrefix + sent
}

// sentOf is the inverse of keyOf; ok is false for a hidden key.
func sentOf(key string) (sent string, ok bool) {
	if own, is := strings.CutPrefix(key, ownPrefix); is {
		return own, true
	}
	return tcpwire.KeyPrefix + key, !strings.Contains(key, hidden)
}
