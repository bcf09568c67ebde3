package main

import (
	"net"

	"golang.org/x/sys/unix"
)

// trafficOf returns the traffic of c, as the kernel has counted it.
func trafficOf(c *net.TCPConn) (t traffic) {
	raw, err := c.SyscallConn()
	if err != nil {
		return t
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			t = traffic{out: info.Bytes_acked, in: info.Bytes_received, resent: uint64(info.Total_retrans)}
		}
	})
	return t
}
