package pickle

import (
	"encoding/binary"
	"slices"
)

// Parse returns the value of b, which is one whole pickle. The value does not alias b.
func Parse(b []byte) (any, error) {
	return parse(b, new(machine))
}

func parse(b []byte, m *machine) (any, error) {
	room := minBudget + budgetPerByte*len(b)
	m.b, m.ops, m.room = b, &opcodes, &room
	v, err := m.run()
	if err != nil {
		return nil, err
	}
	if m.at != len(b) {
		return nil, m.malformed("%d bytes after the end", len(b)-m.at)
	}
	return m.finish(v)
}

// machine runs a pickle. It has a stack with marks, and a memo of values that may be used again.
// Its values are immutable Go values, and pointers to the mutable types in objects.go.
type machine struct {
	b     []byte
	at    int // index of the next byte
	op    int // index of the current opcode
	stack []any
	marks []int // stack heights; pop must not go below the last one
	memo  []any
	room  *int // bytes that may still be allocated
	ops   *[256]opcode
	outer *machine // the machine in whose pickle this one is nested

	// persistent returns the value of a persistent id. If it is nil, persistent ids are refused.
	persistent func(id any) (any, error)
	names      map[string]bool // of objects: see ParseObjects
	objects    int             // that are keys
}

// opcode is one instruction.
type opcode struct {
	name string
	run  func(*machine) error
}

// unset is the value of unused memo entries.
type unset struct{}

const (
	opStop = '.'
	// word is the size of an entry of the stack, of a list or of the memo.
	word = 16
)

// run runs one pickle up to its STOP.
func (m *machine) run() (any, error) {
	for {
		m.op = m.at
		code, err := m.u8()
		if err != nil {
			return nil, err
		}
		if code == opStop {
			return m.stop()
		}
		run := m.ops[code].run
		if run == nil {
			return nil, m.malformed("no opcode of a plain value in pickle's protocols 2 to 5")
		}
		if err := run(m); err != nil {
			return nil, err
		}
	}
}

func (m *machine) stop() (any, error) {
	if len(m.marks) > 0 || len(m.stack) != 1 {
		return nil, m.malformed("%d values and %d marks are left at the end, not one value", len(m.stack), len(m.marks))
	}
	return m.pop()
}

// spend charges n bytes before they are allocated.
func (m *machine) spend(n int) error {
	if n > *m.room {
		return m.fail(ErrTooLarge, "more than %d MiB and %d bytes for each of the pickle's are needed", minBudget>>20, budgetPerByte)
	}
	*m.room -= n
	return nil
}

// take returns the next n bytes, which alias the pickle.
func (m *machine) take(n uint64) ([]byte, error) {
	if n > uint64(len(m.b)-m.at) {
		return nil, m.malformed("it ends %d bytes early", n-uint64(len(m.b)-m.at))
	}
	v := m.b[m.at:][:n:n]
	m.at += int(n)
	return v, nil
}

func (m *machine) u8() (byte, error) {
	b, err := m.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// uint reads an unsigned integer of size bytes.
func (m *machine) uint(size int) (uint64, error) {
	var word [8]byte
	b, err := m.take(uint64(size))
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), err
}

// sized reads a length of size bytes, and returns as many bytes.
func (m *machine) sized(size int) ([]byte, error) {
	n, err := m.uint(size)
	if err != nil {
		return nil, err
	}
	return m.take(n)
}

// line returns what precedes the next line feed.
func (m *machine) line() (string, error) {
	n := slices.Index(m.b[m.at:], '\n')
	if n < 0 {
		return "", m.malformed("a line does not end")
	}
	b := m.b[m.at:][:n]
	m.at += n + 1
	return string(b), m.spend(n)
}

// push pushes v; made is the number of bytes that were allocated for it.
func (m *machine) push(v any, made int) error {
	if err := m.spend(word + made); err != nil {
		return err
	}
	m.stack = append(m.stack, v)
	return nil
}

// floor returns the height of the stack at the last mark.
func (m *machine) floor() int {
	if n := len(m.marks); n > 0 {
		return m.marks[n-1]
	}
	return 0
}

func (m *machine) pop() (any, error) {
	n := len(m.stack)
	if n <= m.floor() {
		return nil, m.malformed("the stack is empty")
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return v, nil
}

// top returns the last value without removing it.
func (m *machine) top() (any, error) {
	n := len(m.stack)
	if n <= m.floor() {
		return nil, m.malformed("the stack is empty")
	}
	return m.stack[n-1], nil
}

// popN removes and returns the last n values, which are valid until the next push.
func (m *machine) popN(n int) ([]any, error) {
	from := len(m.stack) - n
	if from < m.floor() {
		return nil, m.malformed("the stack has fewer than %d values", n)
	}
	vs := m.stack[from:]
	m.stack = m.stack[:from]
	return vs, nil
}

// popMark removes the last mark, and removes and returns the values after it, which are valid until
// the next push.
func (m *machine) popMark() ([]any, error) {
	n := len(m.marks)
	if n == 0 {
		return nil, m.malformed("there is no mark")
	}
	from := m.marks[n-1]
	m.marks = m.marks[:n-1]
	return m.popN(len(m.stack) - from)
}

// put stores the last value in the memo. Picklers number entries from 0 or 1 without gaps, so a
// valid number is never larger than the offset; larger ones allocate nothing.
func (m *machine) put(i uint64) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	if i > uint64(m.at) {
		return m.malformed("memo number %d after %d bytes", i, m.at)
	}
	if more := int(i) + 1 - len(m.memo); more > 0 {
		if err := m.spend(word * more); err != nil {
			return err
		}
		for range more {
			m.memo = append(m.memo, unset{})
		}
	}
	m.memo[i] = v
	return nil
}

func (m *machine) get(i uint64) error {
	if i >= uint64(len(m.memo)) || m.memo[i] == (unset{}) {
		return m.malformed("nothing has memo number %d", i)
	}
	return m.push(m.memo[i], 0)
}
