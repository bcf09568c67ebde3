package nfsws

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// What an *Error wraps, beside errors of the file system and of contexts.
var (
	// ErrNotPublished: the rank has no such state in this generation.
	ErrNotPublished = errors.New("not published")
	// ErrCorrupt: there is a state, but not as it was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrSuperseded: a newer generation has begun here, and this process is left over from an older
	// run. It should end.
	ErrSuperseded = errors.New("superseded by a newer generation")
	// ErrClosed: the Workspace or the View was closed.
	ErrClosed = errors.New("closed")
)

// Error says which operation failed, for which rank, and at which file.
type Error struct {
	Op         string // the verb, as "read"
	Rank       int    // whose state it is about
	Generation uint64
	Path       string // of the file or directory; empty if it is about none
	Err        error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("nfsws: %s rank %d of generation %d: %v", e.Op, e.Rank, e.Generation, e.Err)
	}
	return fmt.Sprintf("nfsws: %s rank %d of generation %d: %s: %v", e.Op, e.Rank, e.Generation, e.Path, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// fileError is the error of a step at a file, whose name is below the workspace's directory; wrap
// makes it the Path of an Error.
type fileError struct {
	name string
	err  error
}

func (e *fileError) Error() string { return e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// at names the file that err is about, once; what the operating system wraps around it says the
// same again.
func at(name string, err error) error {
	switch e := err.(type) { //nolint:errorlint // only what is outermost is taken off, and nothing that was said about it
	case nil:
		return nil
	case *fs.PathError:
		err = e.Err
	case *os.LinkError:
		err = e.Err
	}
	return &fileError{name, err}
}

// corrupt is an ErrCorrupt of the file called name.
func corrupt(name, format string, args ...any) error {
	return &fileError{name, fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)}
}

// wrap makes err the *Error of a verb.
func (w *Workspace) wrap(op string, rank int, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Rank: rank, Generation: w.generation, Err: err}
	if f, ok := errors.AsType[*fileError](err); ok {
		e.Path = w.path(f.name)
	}
	if errors.Is(err, fs.ErrClosed) {
		e.Err = ErrClosed
	}
	return e
}

// passing reports whether a stale cache of this client may be the cause: to look again may give
// another answer.
func passing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) || errors.Is(err, ErrCorrupt)
}
