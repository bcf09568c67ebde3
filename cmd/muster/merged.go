package main

import (
	"context"
	"io"

	"github.com/muster-pg/muster/tensor/safetensors"
)

// merged is the file that a gather writes: it counts, and ends with its context.
type merged struct {
	ctx     context.Context
	w       io.Writer
	meter   *writeMeter
	tensors int
	total   int64 // bytes of the whole
	err     error // of w, or the end of ctx
}

// begin is told what the file will have.
func (m *merged) begin(h *safetensors.Header) {
	m.tensors, m.total = h.Len(), h.Size()
	m.meter.begin(m.total)
}

// pieceLen is how much is written before looking whether to go on.
const pieceLen = 4 << 20

// Write implements io.Writer.
func (m *merged) Write(p []byte) (n int, err error) {
	for len(p) > 0 && m.err == nil {
		if m.ctx.Err() != nil {
			m.err = context.Cause(m.ctx)
			break
		}
		var k int
		k, m.err = m.w.Write(p[:min(len(p), pieceLen)])
		m.meter.add(k)
		n += k
		p = p[k:]
	}
	return n, m.err
}
