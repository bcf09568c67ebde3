package wire_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// goldenFile has the frames of the tables for clients in other languages, which are tested against
// the same bytes. Values are in base64; fields that a request does not have are absent.
const goldenFile = "testdata/golden.json"

type goldenRequest struct {
	Request wire.Request
	Bytes   string // in hex
}

type goldenReply struct {
	Name  string
	Op    wire.Op
	ID    uint64
	Reply wire.Reply
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
		golden.Requests = append(golden.Requests, goldenRequest{g.req, hex.EncodeToString(unhex(t, g.bytes))})
	}
	reqs, _ := numbered()
	for i := range reqs {
		golden.Requests = append(golden.Requests, goldenRequest{reqs[i], hex.EncodeToString(wire.AppendRequest(nil, &reqs[i]))})
	}
	for _, g := range goldenReplies {
		golden.Replies = append(golden.Replies, goldenReply{g.name, g.op, 5, g.rep, hex.EncodeToString(unhex(t, g.bytes))})
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
