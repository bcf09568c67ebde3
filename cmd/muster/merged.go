package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"

	"github.com/muster-pg/muster/tensor/safetensors"
)

// merged passes a safetensors file on to w with metadata that it did not have, and counts.
type merged struct {
	ctx      context.Context
	w        io.Writer
	metadata map[string]string
	began    func(total int64) // when the header is there
	wrote    func(n int)       // after each piece

	head    []byte // as long as it is not whole
	file    *safetensors.Writer
	tensors int
	total   int64 // bytes of the whole
	err     error // of w, or the end of ctx
}

// Write implements io.Writer.
func (m *merged) Write(p []byte) (int, error) {
	if m.file != nil {
		return m.file.Write(p)
	}
	m.head = append(m.head, p...)
	const lengthLen = 8
	if len(m.head) < lengthLen {
		return len(p), nil
	}
	n := binary.LittleEndian.Uint64(m.head)
	if uint64(len(m.head)-lengthLen) < n {
		return len(p), nil
	}
	n += lengthLen
	if err := m.begin(m.head[:n]); err != nil {
		return 0, err
	}
	if rest := m.head[n:]; len(rest) > 0 {
		if _, err := m.file.Write(rest); err != nil {
			return 0, err
		}
	}
	m.head = nil
	return len(p), nil
}

// begin writes the header anew.
func (m *merged) begin(head []byte) error {
	var ends map[string]struct {
		Offsets [2]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(head[8:], &ends); err != nil {
		return err
	}
	size := int64(0)
	for _, e := range ends {
		size = max(size, e.Offsets[1])
	}
	h, err := safetensors.ReadHeader(bytes.NewReader(head), int64(len(head))+size)
	if err != nil {
		return err
	}
	m.file, err = safetensors.NewWriter(counted{m}, maps.Collect(h.Infos()), m.metadata)
	if err != nil {
		return err
	}
	m.tensors, m.total = h.Len(), m.file.Header().Size()
	m.began(m.total)
	return nil
}

// close is an error if bytes are missing.
func (m *merged) close() error {
	if m.file == nil {
		return io.ErrUnexpectedEOF
	}
	return m.file.Close()
}

// counted is what a merged writes to.
type counted struct{ m *merged }

// pieceLen is how much is written before looking whether to go on.
const pieceLen = 4 << 20

// Write implements io.Writer.
func (c counted) Write(p []byte) (n int, err error) {
	m := c.m
	for len(p) > 0 && m.err == nil {
		if m.ctx.Err() != nil {
			m.err = context.Cause(m.ctx)
			break
		}
		var k int
		k, m.err = m.w.Write(p[:min(len(p), pieceLen)])
		m.wrote(k)
		n += k
		p = p[k:]
	}
	return n, m.err
}
