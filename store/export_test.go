package store

import "net"

// ConnOf is the connection of a client.
func ConnOf(e Engine) net.Conn { return e.(*client).conn }
