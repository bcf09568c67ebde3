package journal

import (
	"errors"
	"fmt"
	"io/fs"
)

// The errors of Open besides *DamageError. Open has changed nothing.
var (
	ErrForeign    = errors.New("not a log of muster, or its beginning is lost")
	ErrNewer      = errors.New("written by a newer muster: use that one")
	ErrOtherStore = errors.New("the log of another store")
	ErrMissing    = errors.New("a segment of the log is missing: restore it, or the whole directory, from a backup")
)

// ErrExists is the error of Create if there is a log. Create has changed nothing.
var ErrExists = errors.New("there is a log already")

// ErrClosed is the error of Sync after Close.
var ErrClosed = errors.New("journal: closed")

// DamageError reports that the log has lost something that was durable. Open has changed nothing.
type DamageError struct {
	File   string // path of the file
	Offset int64  // where the damage begins
	Reason string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("journal: %s is damaged at byte %d: %s. What was durable is lost; nothing was changed: "+
		"keep a copy of the directory, check the disk, and restore the directory from a backup", e.File, e.Offset, e.Reason)
}

// refuse wraps one of the errors above with the name of the file.
func refuse(name string, err error, detail string, args ...any) error {
	return fmt.Errorf("journal: %s: %w%s", name, err, fmt.Sprintf(detail, args...))
}

// fileError adds the operation and the name of the file to err, once.
func fileError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fmt.Errorf("journal: %s %s: %w", op, name, err)
}
