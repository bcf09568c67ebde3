package link

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/spin"
)

// PollingConn takes a connection out of the runtime's poller.
func PollingConn(c net.Conn) (net.Conn, error) { return newPollingConn(c, new(spin.Poller)) }

// Segments returns how many TCP segments a PollingConn has sent.
func Segments(c net.Conn) (uint32, error) {
	info, err := unix.GetsockoptTCPInfo(c.(*pollingConn).fd, unix.SOL_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, err
	}
	return info.Data_segs_out, nil
}
