package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// golden has every operation with all its fields, each part of a reply, and their bytes, as in
// docs/reference/protocol.md. Clients in other languages are tested against the same file: values are in
// base64, times in nanoseconds, and fields that are zero are absent.
var golden = readGolden()

type goldenFile struct {
	Preface  string
	Requests []struct {
		Name    string
		Request wire.Request
		Bytes   string // see unhex
	}
	Replies []goldenReply
}

type goldenReply struct {
	Name  string
	Op    wire.Op
	ID    uint64
	Reply wire.Reply
	Bytes string
}

func readGolden() (g goldenFile) {
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		panic(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&g); err != nil {
		panic(err)
	}
	return g
}

// unhex returns the bytes of a golden string. Its spaces and bars are for the reader.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	require.NoError(t, err)
	return b
}
