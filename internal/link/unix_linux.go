package link

import (
	"encoding/hex"
	"net"

	"github.com/muster-pg/muster/internal/handshake"
)

// listenUnix listens at an abstract unix socket: its name is not a file, and ends with the process.
// The name is random; a process that finds it in /proc still needs the token.
func listenUnix() (net.Listener, string) {
	name := "@muster-" + hex.EncodeToString(handshake.NewNonce()[:16])
	l, err := net.Listen("unix", name)
	if err != nil {
		return nil, "" // use TCP
	}
	return l, name
}
