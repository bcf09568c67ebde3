package link

import (
	"net"

	"github.com/muster-pg/muster/internal/spin"
)

// PollingConn takes a connection out of the runtime's poller.
func PollingConn(c net.Conn) (net.Conn, error) { return newPollingConn(c, new(spin.Poller)) }
