package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/muster-pg/muster/internal/journal"
)

// The seal follows the pages of a checkpoint, where bbolt does not look. Integers are
// little-endian.
//
//	magic    8  "musterCP"
//	version  4  3: the format of the checkpoint
//	length   8  number of bytes before the seal
//	crc      4  CRC-32C of all bytes before it in the file
//
// It is in the same file so that a rename replaces both at once, and a backup includes it.
const (
	sealMagic   = "musterCP"
	sealVersion = 3
	sealLen     = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealWindow is the number of bytes of a checkpoint that are read at once.
const sealWindow = 256 << 10

// seal appends the seal to a bbolt file, makes the file durable, and returns its size.
func seal(fs journal.FS, name string) (size int64, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if size, err = f.Size(); err != nil {
		return 0, err
	}
	sum, err := checksum(f, size)
	if err != nil {
		return 0, err
	}
	b := append(make([]byte, 0, sealLen), sealMagic...)
	b = binary.LittleEndian.AppendUint32(b, sealVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(sum, castagnoli, b))
	if _, err := f.WriteAt(b, size); err != nil {
		return 0, err
	}
	return size + sealLen, f.Sync()
}

// checkSeal returns the size of a checkpoint file, or ErrDamaged if its seal does not match.
func checkSeal(name string) (size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	unsealed := func(format string, args ...any) (int64, error) {
		return 0, fmt.Errorf("%w: %s: %s", ErrDamaged, filepath.Base(name), fmt.Sprintf(format, args...))
	}
	b, length := make([]byte, sealLen), info.Size()-sealLen
	if length < 0 {
		return unsealed("it has %d bytes", info.Size())
	}
	if _, err := f.ReadAt(b, length); err != nil {
		return 0, err
	}
	version := binary.LittleEndian.Uint32(b[8:])
	switch {
	case string(b[:8]) != sealMagic:
		return unsealed("it does not end with a seal: it is incomplete or damaged, or an older version of muster, or something else, wrote it")
	case version > sealVersion:
		return 0, fmt.Errorf("%w: %s has format %d, this is %d", ErrNewer, filepath.Base(name), version, sealVersion)
	case version < sealVersion:
		return 0, fmt.Errorf("%w: %s has format %d, this is %d", ErrOlder, filepath.Base(name), version, sealVersion)
	case binary.LittleEndian.Uint64(b[12:]) != uint64(length):
		return unsealed("its length is wrong")
	}
	sum, err := checksum(f, length)
	if err != nil {
		return 0, err
	}
	if crc32.Update(sum, castagnoli, b[:sealLen-4]) != binary.LittleEndian.Uint32(b[sealLen-4:]) {
		return unsealed("its checksum is wrong")
	}
	return info.Size(), nil
}

// checksum returns the CRC-32C of the first n bytes of a file.
func checksum(f io.ReaderAt, n int64) (sum uint32, err error) {
	h := crc32.New(castagnoli)
	_, err = io.CopyBuffer(h, io.NewSectionReader(f, 0, n), make([]byte, sealWindow))
	return h.Sum32(), err
}
