package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/wire"
)

// checkSecret rejects a secret that could be guessed.
func checkSecret(secret []byte) error {
	if bad := handshake.BadSecret(secret); bad != "" {
		return secretError("", "%s", bad)
	}
	return nil
}

// ReadSecret reads the secret in file, without a final end of line. The file must not be accessible
// to other users than its owner.
func ReadSecret(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, &Error{Op: "secret", Key: file, Code: wire.CodeInvalid, Err: err}
	}
	defer f.Close()
	open, err := readByOthers(f)
	if open {
		return nil, secretError(file, "other users can read it: chmod 600 %s, and if they have read it, %s", file, handshake.MakeSecret)
	}
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(f, handshake.MaxSecret+3)) // with an end of line, and one byte more
	}
	if err != nil {
		return nil, &Error{Op: "secret", Key: file, Code: wire.CodeInvalid, Err: err}
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if bad := handshake.BadSecret(b); bad != "" {
		return nil, secretError(file, "%s", bad)
	}
	return b, nil
}

// readByOthers reports whether the mode of f gives other users any access. On Windows, modes
// do not show that.
func readByOthers(f *os.File) (bool, error) {
	i, err := f.Stat()
	if err != nil {
		return false, err
	}
	return runtime.GOOS != "windows" && i.Mode().Perm()&0o077 != 0, nil
}

func secretError(file, format string, args ...any) error {
	return &Error{Op: "secret", Key: file, Code: wire.CodeInvalid, Err: fmt.Errorf(format, args...)}
}
