package link

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The two ends of a connection authenticate each other by challenge and response. The key is the
// token of the acceptor, which only ranks of the group know; it is never sent. An acceptor answers
// every hello, also one for another mesh, since a dialer without an answer retries. Numbers are
// little-endian.
//
//	dialer → acceptor   hello: magic[8] | kind u8 | id u64 | number u64 | from u32 | to u32 | generation u64 | name[8] | nonce[32]
//	acceptor → dialer   nonce[32] | HMAC-SHA256(token, "accept", hello, nonce)[32]
//	dialer → acceptor   HMAC-SHA256(token, "dial", hello, nonce)[32]
//	acceptor → dialer   1 u8, when Accept has the connection
const (
	magic    = "muster\x00\x01"
	nonceLen = 32
	macLen   = sha256.Size
	nameLen  = 8
	helloLen = len(magic) + 1 + 8 + 8 + 4 + 4 + 8 + nameLen + nonceLen
	accepted = 1
)

var (
	errWrongKey = errors.New("the peer does not know the key of this group")
	errProtocol = errors.New("the peer uses another protocol")
)

func newNonce() []byte {
	b := make([]byte, nonceLen)
	_, _ = rand.Read(b) // it never fails
	return b
}

func (m *Mesh) appendHello(b []byte, p Purpose, to int) []byte {
	b = append(b, magic...)
	b = append(b, p.Kind)
	b = binary.LittleEndian.AppendUint64(b, p.ID)
	b = binary.LittleEndian.AppendUint64(b, p.Number)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.group.Rank()))
	b = binary.LittleEndian.AppendUint32(b, uint32(to))
	b = binary.LittleEndian.AppendUint64(b, m.group.Generation())
	b = append(b, m.nameHash()...)
	return append(b, newNonce()...)
}

func (m *Mesh) nameHash() []byte {
	h := sha256.Sum256([]byte(m.opts.Name))
	return h[:nameLen]
}

// parseHello returns which rank dials, and for what purpose. A hello for another rank, group or
// mesh is an error: addresses are reused.
func (m *Mesh) parseHello(b []byte) (from int, p Purpose, err error) {
	if string(b[:len(magic)]) != magic {
		return 0, p, errProtocol
	}
	b = b[len(magic):]
	p = Purpose{Kind: b[0], ID: binary.LittleEndian.Uint64(b[1:]), Number: binary.LittleEndian.Uint64(b[9:])}
	b = b[17:]
	from = int(binary.LittleEndian.Uint32(b))
	to := int(binary.LittleEndian.Uint32(b[4:]))
	generation := binary.LittleEndian.Uint64(b[8:])
	switch {
	case to != m.group.Rank() || generation != m.group.Generation() || !bytes.Equal(b[16:16+nameLen], m.nameHash()):
		return 0, p, fmt.Errorf("the hello is for rank %d of generation %d, or for another mesh", to, generation)
	case from >= len(m.peers) || from == m.group.Rank():
		return 0, p, fmt.Errorf("the hello is from rank %d, which is invalid", from)
	}
	return from, p, nil
}

func mac(token []byte, who string, hello, nonce []byte) []byte {
	h := hmac.New(sha256.New, token)
	h.Write([]byte(who))
	h.Write(hello)
	h.Write(nonce)
	return h.Sum(nil)
}

// dialHandshake is the handshake of the dialer. It returns the connection to use, which may be a
// TLS connection.
func (m *Mesh) dialHandshake(ctx context.Context, conn net.Conn, rank int, p Purpose) (net.Conn, error) {
	conn, err := m.dialTLS(ctx, conn, rank)
	if err != nil {
		return nil, err
	}
	token := m.peers[rank].Token
	hello := m.appendHello(nil, p, rank)
	var answer [nonceLen + macLen]byte
	var end [1]byte
	exchange := []func() error{
		func() error { return write(conn, hello) },
		func() error { return read(conn, answer[:]) },
		func() error {
			if !hmac.Equal(answer[nonceLen:], mac(token, "accept", hello, answer[:nonceLen])) {
				return errWrongKey
			}
			return write(conn, mac(token, "dial", hello, answer[:nonceLen]))
		},
		func() error { return read(conn, end[:]) },
	}
	for _, step := range exchange {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if end[0] != accepted {
		return nil, errProtocol
	}
	return conn, nil
}

// acceptHandshake is the handshake of the acceptor. It hands the connection to Accept.
func (m *Mesh) acceptHandshake(conn net.Conn) error {
	conn, err := m.acceptTLS(conn)
	if err != nil {
		return err
	}
	var hello [helloLen]byte
	if err := read(conn, hello[:]); err != nil {
		return err
	}
	from, purpose, err := m.parseHello(hello[:])
	if errors.Is(err, errProtocol) {
		return err
	}
	nonce := newNonce()
	var proof [macLen]byte
	if err := write(conn, append(nonce, mac(m.token, "accept", hello[:], nonce)...)); err != nil {
		return err
	}
	if err == nil {
		err = m.checkCertificate(conn, from)
	}
	if err != nil { // the dialer sees from the answer that it meant another mesh, and gives up
		return err
	}
	if err := read(conn, proof[:]); err != nil {
		return err
	}
	if !hmac.Equal(proof[:], mac(m.token, "dial", hello[:], nonce)) {
		return errWrongKey
	}
	_ = conn.SetDeadline(time.Time{})
	m.opts.Accept(&Conn{Conn: conn, Rank: from, Purpose: purpose})
	return write(conn, []byte{accepted})
}

func read(conn net.Conn, b []byte) error {
	_, err := io.ReadFull(conn, b)
	return err
}

func write(conn net.Conn, b []byte) error {
	_, err := conn.Write(b)
	return err
}
