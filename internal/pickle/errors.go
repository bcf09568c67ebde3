package pickle

import (
	"errors"
	"fmt"
)

// The kinds of errors in a pickle.
var (
	ErrRefused   = errors.New("no plain value")
	ErrMalformed = errors.New("malformed")
	ErrTooLarge  = errors.New("too large")
)

// Error describes what is wrong with a pickle, and where. It wraps ErrRefused, ErrMalformed or
// ErrTooLarge.
type Error struct {
	Offset int    // of the opcode; in a storage of torch, of the call that reads it
	Op     string // name of the opcode in pickletools
	Name   string // the refused name, such as "os.system"; "" if it has none
	Reason string
	Err    error
}

func (e *Error) Error() string {
	what := e.Reason
	if e.Name != "" {
		what = fmt.Sprintf("%.200q: %s", e.Name, e.Reason)
	}
	return fmt.Sprintf("pickle: %v: %s (%s at offset %d)", e.Err, what, e.Op, e.Offset)
}

func (e *Error) Unwrap() error { return e.Err }

// fail returns an Error at m's current opcode.
func (m *machine) fail(err error, format string, args ...any) error {
	return &Error{Offset: m.offset(), Op: m.opName(), Reason: fmt.Sprintf(format, args...), Err: err}
}

func (m *machine) malformed(format string, args ...any) error {
	return m.fail(ErrMalformed, format, args...)
}

// refuse returns an Error about a refused name.
func (m *machine) refuse(name, format string, args ...any) error {
	return &Error{Offset: m.offset(), Op: m.opName(), Name: name, Reason: fmt.Sprintf(format, args...), Err: ErrRefused}
}

func (m *machine) offset() int {
	for m.outer != nil {
		m = m.outer
	}
	return m.op
}

func (m *machine) opName() string {
	if m.op >= len(m.b) {
		return "end"
	}
	if name := m.ops[m.b[m.op]].name; name != "" {
		return name
	}
	return fmt.Sprintf("opcode %#x", m.b[m.op])
}
