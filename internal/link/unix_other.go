//go:build !linux

package link

import "net"

// listenUnix: elsewhere a unix socket is a file, which stays behind. TCP will do.
func listenUnix() (net.Listener, string) { return nil, "" }
