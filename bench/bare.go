package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// bareStore is a minimal key-value server: a goroutine for each connection, a map and a lock.
type bareStore struct {
	mu sync.RWMutex
	m  map[string][]byte
}

// serveBare runs the role of the bare key-value server.
func serveBare([]string) error {
	s := &bareStore{m: map[string][]byte{}}
	return serveEach(func(c net.Conn) {
		r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
		for s.answer(r, w) == nil {
			if r.Buffered() > 0 {
				continue
			}
			if w.Flush() != nil {
				return
			}
		}
	})
}

func (s *bareStore) answer(r *bufio.Reader, w *bufio.Writer) error {
	head, err := r.Peek(bareRequestLen)
	if err != nil {
		return err
	}
	op, keyLen, valueLen := head[0], int(binary.LittleEndian.Uint16(head[1:])), int(binary.LittleEndian.Uint32(head[3:]))
	_, _ = r.Discard(bareRequestLen)
	key, err := r.Peek(keyLen)
	if err != nil {
		return err
	}
	var value []byte
	var status byte
	switch op {
	case bareGet:
		s.mu.RLock()
		v, ok := s.m[string(key)]
		s.mu.RUnlock()
		if value = v; !ok {
			status = 1
		}
		_, _ = r.Discard(keyLen)
	case bareSet:
		k := string(key)
		_, _ = r.Discard(keyLen)
		v := make([]byte, valueLen)
		if _, err := io.ReadFull(r, v); err != nil {
			return err
		}
		s.mu.Lock()
		s.m[k] = v
		s.mu.Unlock()
	}
	var h [bareReplyLen]byte
	h[0] = status
	binary.LittleEndian.PutUint32(h[1:], uint32(len(value)))
	_, _ = w.Write(h[:])
	_, err = w.Write(value)
	return err
}

// serveEach prints its address, and serves each connection in a goroutine, until the parent ends.
func serveEach(serve func(c net.Conn)) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	emit("%s", l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return listen(func(string) error { return nil })
}
