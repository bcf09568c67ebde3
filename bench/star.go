package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// star is a minimal group of processes in Go: a coordinator in rank 0's process, and a TCP
// connection from each rank, including rank 0. It handles no errors, deadlines or names, and
// assumes that all ranks make the same calls.
//
//	request: op u8 | peer u8 | length u32 | payload
//	reply:   its bytes; the caller knows how many
type star struct {
	conns []net.Conn

	mu    sync.Mutex // protects the fields below, and the order of replies
	came  int
	parts [][]byte
}

const (
	starBarrier   byte = iota + 1 // the reply is one byte
	starGather                    // the reply is the payloads of all ranks
	starBroadcast                 // the reply is the payload of the one rank that has one
	starSend                      // the payload goes to a peer
)

const (
	starHeader = 6
	// starParallel is the payload size from which on a goroutine for each rank writes the replies.
	starParallel = 64 << 10
)

// serveStar accepts size connections, each of which begins with its rank, and serves them until
// they end.
func serveStar(l net.Listener, size int) error {
	s := &star{conns: make([]net.Conn, size), parts: make([][]byte, size)}
	for range size {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		var rank [1]byte
		if _, err := io.ReadFull(c, rank[:]); err != nil {
			return err
		}
		s.conns[rank[0]] = c
	}
	for rank := range s.conns {
		go func() { _ = s.serve(rank) }()
	}
	return nil
}

func (s *star) serve(rank int) error {
	c := s.conns[rank]
	head := make([]byte, starHeader)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		payload := make([]byte, binary.LittleEndian.Uint32(head[2:]))
		if _, err := io.ReadFull(c, payload); err != nil {
			return err
		}
		if err := s.take(head[0], rank, int(head[1]), payload); err != nil {
			return err
		}
	}
}

// take takes one rank's request. The last request of an operation sends the replies of all ranks.
func (s *star) take(op byte, rank, peer int, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op == starSend {
		_, err := s.conns[peer].Write(payload)
		return err
	}
	s.parts[rank] = payload
	if s.came++; s.came < len(s.conns) {
		return nil
	}
	s.came = 0
	reply := []byte{1}
	if op != starBarrier { // a broadcast is a gather in which all ranks but one have no payload
		reply = bytes.Join(s.parts, nil)
	}
	return s.reply(reply)
}

func (s *star) reply(b []byte) error {
	if len(b) < starParallel {
		for _, c := range s.conns {
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	for _, c := range s.conns {
		wg.Go(func() { _, _ = c.Write(b) })
	}
	wg.Wait()
	return nil
}

// ray is a rank's connection to the star.
type ray struct {
	conn net.Conn
	out  []byte
}

func dialStar(addr string, rank int) (*ray, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_, err = c.Write([]byte{byte(rank)})
	return &ray{conn: c}, err
}

// call sends a request to the star, and reads a reply of len(reply) bytes.
func (r *ray) call(op byte, peer int, payload, reply []byte) error {
	r.out = append(r.out[:0], op, byte(peer))
	r.out = binary.LittleEndian.AppendUint32(r.out, uint32(len(payload)))
	r.out = append(r.out, payload...)
	if _, err := r.conn.Write(r.out); err != nil {
		return err
	}
	if _, err := io.ReadFull(r.conn, reply); err != nil {
		return fmt.Errorf("star: %w", err)
	}
	return nil
}

func (r *ray) barrier() error {
	var b [1]byte
	return r.call(starBarrier, 0, nil, b[:])
}
