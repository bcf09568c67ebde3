package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// goldenFile has the frames of the tables for clients in other languages, which are tested against
// the same bytes. Values are in base64; fields that are zero are absent.
const goldenFile = "testdata/golden.json"

type goldenRequest struct {
	Request any
	Bytes   string // in hex
}

type goldenReply struct {
	Name  string
	Op    wire.Op
	ID    uint64
	Reply any
	Bytes string
}

// TestGoldenFile checks that the file agrees with the tables. MUSTER_GOLDEN=write writes it.
func TestGoldenFile(t *testing.T) {
	var golden struct {
		Preface  string
		Requests []goldenRequest
		Replies  []goldenReply
	}
	golden.Preface = hex.EncodeToString([]byte(wire.Preface))
	for _, g := range goldenRequests {
		golden.Requests = append(golden.Requests, goldenRequest{set(t, g.req), hex.EncodeToString(unhex(t, g.bytes))})
	}
	reqs, _ := numbered()
	for i := range reqs {
		golden.Requests = append(golden.Requests, goldenRequest{set(t, reqs[i]), hex.EncodeToString(wire.AppendRequest(nil, &reqs[i]))})
	}
	for _, g := range goldenReplies {
		golden.Replies = append(golden.Replies, goldenReply{g.name, g.op, 5, set(t, g.rep), hex.EncodeToString(unhex(t, g.bytes))})
	}
	want, err := json.MarshalIndent(golden, "", " ")
	require.NoError(t, err)
	want = append(want, '\n')
	if os.Getenv("MUSTER_GOLDEN") == "write" {
		require.NoError(t, os.WriteFile(goldenFile, want, 0o644))
	}
	got, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "the tables have changed: MUSTER_GOLDEN=write go test ./wire -run GoldenFile")
}

// set returns the fields of a request or a reply that are not zero.
func set(t *testing.T, v any) any {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // some are above 2^53
	var fields map[string]any
	require.NoError(t, d.Decode(&fields))
	dropZero(fields)
	return fields
}

func dropZero(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			dropZero(e)
		}
	case map[string]any:
		for name, e := range v {
			dropZero(e)
			inner, isObject := e.(map[string]any)
			if e == nil || e == false || e == json.Number("0") || isObject && len(inner) == 0 {
				delete(v, name)
			}
		}
	}
}
