package torchstore

import (
	"strings"

	"github.com/muster-pg/muster/wire/tcpstore"
)

const (
	// hidden is in all names that Python is not shown.
	hidden = "\x00"
	// InitKey is what Go calls "init/", the number of clients with a world size that have come.
	InitKey = ownPrefix + tcpstore.InitKey
	// ownPrefix is in front of what is not a user's.
	ownPrefix = hidden + "torch/"
)

// keyOf is the store's key for one of the protocol.
func keyOf(sent string) string {
	if key, users := strings.CutPrefix(sent, tcpstore.KeyPrefix); users {
		return key
	}
	return ownPrefix + sent
}

// sentOf is keyOf's inverse; ok is that there is something to show.
func sentOf(key string) (sent string, ok bool) {
	if own, is := strings.CutPrefix(key, ownPrefix); is {
		return own, true
	}
	return tcpstore.KeyPrefix + key, !strings.Contains(key, hidden)
}
