//go:build !unix

package durable

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }

func lockDir(*os.File) error { return nil }

func unlock(*os.File) {}
