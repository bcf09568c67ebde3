package link

import (
	"encoding/hex"
	"net"
)

// listenUnix listens at a name that is no file, and ends with the process. Nobody can guess it; who finds it in /proc
// still has to know the token.
func listenUnix() (net.Listener, string) {
	name := "@muster-" + hex.EncodeToString(newNonce()[:16])
	l, err := net.Listen("unix", name)
	if err != nil {
		return nil, "" // TCP will do
	}
	return l, name
}
