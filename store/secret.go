package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/wire"
)

// ReadSecret reads the secret in file, without a final end of line. The file must not be accessible
// to other users than its owner.
func ReadSecret(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fileError("secret", file, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && readByOthers(info) {
		err = fmt.Errorf("other users can read it: chmod 600 %s, and if they have read it, %s", file, handshake.MakeSecret)
	}
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(f, handshake.MaxSecret+3)) // with an end of line, and one byte more
	}
	if err != nil {
		return nil, fileError("secret", file, err)
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if bad := handshake.BadSecret(b); bad != "" {
		return nil, fileError("secret", file, errors.New(bad))
	}
	return b, nil
}

// readByOthers reports whether the mode of a file gives other users any access. On Windows, modes do
// not show that.
func readByOthers(file os.FileInfo) bool {
	return runtime.GOOS != "windows" && file.Mode().Perm()&0o077 != 0
}

// fileError returns the error of a file with credentials.
func fileError(op, file string, err error) error {
	return &Error{Op: op, Key: file, Code: wire.CodeInvalid, Err: err}
}
