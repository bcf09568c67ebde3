package safetensors

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var (
	// ErrFormat matches every FormatError.
	ErrFormat = errors.New("safetensors: not a valid file")
	// ErrNoTensor is the error for a name that no tensor has.
	ErrNoTensor = errors.New("no such tensor")
)

// FormatError describes what is wrong with a file, or with the index of a model.
type FormatError struct {
	File   string // as the caller gave it; empty if there was no name
	Tensor string // the tensor at fault; empty if there is none
	Offset int64  // offset of the error in the file
	Reason string
}

func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("safetensors: ")
	if e.File != "" {
		b.WriteString(e.File + ": ")
	}
	if e.Tensor != "" {
		b.WriteString("tensor " + quote(e.Tensor) + ": ")
	}
	fmt.Fprintf(&b, "%s (at byte %d)", e.Reason, e.Offset)
	return b.String()
}

// Is reports whether target is ErrFormat.
func (e *FormatError) Is(target error) bool { return target == ErrFormat }

// WriteError describes what could not be written.
type WriteError struct {
	File   string // as the caller gave it; empty if there was no name
	Tensor string // the tensor at fault; empty if there is none
	Err    error
}

func (e *WriteError) Error() string {
	var b strings.Builder
	b.WriteString("safetensors: write")
	if e.File != "" {
		b.WriteString(" " + e.File)
	}
	if e.File != "" && e.Tensor != "" {
		b.WriteByte(':')
	}
	if e.Tensor != "" {
		b.WriteString(" tensor " + quote(e.Tensor))
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *WriteError) Unwrap() error { return e.Err }

// invalid returns a FormatError at an offset.
func invalid(at int64, format string, args ...any) *FormatError {
	return &FormatError{Offset: at, Reason: fmt.Sprintf(format, args...)}
}

// inFile sets the file of err, if it is an error of this package.
func inFile(name string, err error) error {
	if e, ok := errors.AsType[*FormatError](err); ok {
		e.File = name
	}
	if e, ok := errors.AsType[*WriteError](err); ok {
		e.File = name
	}
	return err
}

// inTensor sets the tensor of err, if it is a FormatError.
func inTensor(name string, err error) error {
	if e, ok := errors.AsType[*FormatError](err); ok {
		e.Tensor = name
	}
	return err
}

// quote quotes a name, and shortens it: in a malicious file it may have a hundred million bytes.
func quote(name string) string {
	const most = 200
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
}
