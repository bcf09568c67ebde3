package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/muster-pg/muster/wire"
)

// operation is an operation of a load.
type operation string

const (
	opGet operation = "get"
	opSet operation = "set"
)

// dialect is the protocol of a connection to a server. Each implementation is as cheap as possible,
// so that differences come from the servers.
type dialect interface {
	open(c net.Conn) error
	request(b []byte, op operation, key string, value []byte) []byte
	// reply returns the length of the reply at the front of b, or 0 if it is incomplete.
	reply(b []byte) (n int, err error)
}

// wireDialect is muster's protocol. Each connection has one, since it reuses its request.
type wireDialect struct{ req wire.Request }

func (d *wireDialect) open(c net.Conn) error {
	b := wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Key: "bench"})
	if _, err := c.Write(b); err != nil {
		return err
	}
	head := make([]byte, wire.HeaderLen)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	h, err := wire.ParseHeader(head, wire.MaxReply)
	if err != nil {
		return err
	}
	_, err = io.CopyN(io.Discard, c, int64(h.Len))
	return err
}

func (d *wireDialect) request(b []byte, op operation, key string, value []byte) []byte {
	d.req.Op, d.req.Key, d.req.Value = wire.OpSet, key, value
	if op == opGet {
		d.req.Op, d.req.Value = wire.OpGet, nil
	}
	d.req.ID++
	return wire.AppendRequest(b, &d.req)
}

func (*wireDialect) reply(b []byte) (int, error) {
	if len(b) < wire.HeaderLen {
		return 0, nil
	}
	h, err := wire.ParseHeader(b, wire.MaxReply)
	n := wire.HeaderLen + int(h.Len)
	switch {
	case err != nil:
		return 0, err
	case len(b) < n:
		return 0, nil
	case h.Code != wire.CodeOK:
		return 0, fmt.Errorf("%s: %s", h.Op, h.Code)
	}
	return n, nil
}

// respDialect is Redis's protocol.
type respDialect struct{}

func (respDialect) open(net.Conn) error { return nil }

func (respDialect) request(b []byte, op operation, key string, value []byte) []byte {
	if op == opGet {
		return appendBulk(append(b, "*2\r\n$3\r\nGET\r\n"...), key)
	}
	return appendBulk(appendBulk(append(b, "*3\r\n$3\r\nSET\r\n"...), key), value)
}

func appendBulk[T string | []byte](b []byte, v T) []byte {
	b = strconv.AppendInt(append(b, '$'), int64(len(v)), 10)
	b = append(append(b, "\r\n"...), v...)
	return append(b, "\r\n"...)
}

func (respDialect) reply(b []byte) (int, error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return 0, nil
	}
	switch b[0] {
	case '+', ':':
		return end + 1, nil
	case '$':
		n, err := strconv.Atoi(string(b[1 : end-1]))
		if err != nil || n < 0 {
			return 0, fmt.Errorf("redis: no value: %q", b[:end])
		}
		if n += end + 3; n > len(b) {
			return 0, nil
		}
		return n, nil
	}
	return 0, fmt.Errorf("redis: %q", b[:end])
}
