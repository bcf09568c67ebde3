package python_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// tap is a listener that records what its connections receive.
type tap struct {
	net.Listener
	mu   sync.Mutex // protects the field below, and what it points to
	seen []*bytes.Buffer
}

func (w *tap) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, new(bytes.Buffer))
	return &tapped{c, w, w.seen[len(w.seen)-1]}, nil
}

type tapped struct {
	net.Conn
	tap  *tap
	seen *bytes.Buffer
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.seen.Write(b[:n])
	return n, err
}

// of returns the requests with some operations.
func (w *tap) of(t *testing.T, ops ...wire.Op) (reqs []wire.Request) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, seen := range w.seen {
		b := seen.Bytes()
		for b = b[min(len(b), len(wire.Preface)):]; len(b) >= wire.HeaderLen; {
			h, err := wire.ParseHeader(b, wire.MaxBody)
			require.NoError(t, err)
			end := wire.HeaderLen + int(h.Len)
			if end > len(b) {
				break
			}
			var req wire.Request
			require.NoError(t, req.Parse(h, bytes.Clone(b[wire.HeaderLen:end])), h.Op)
			if slices.Contains(ops, req.Op) {
				reqs = append(reqs, req)
			}
			b = b[end:]
		}
	}
	return reqs
}

// verbsInDocs parses the table of verbs in docs/reference/protocol.md: the contents of each rank's
// vote, for root 0 of two ranks.
func verbsInDocs(t *testing.T) map[string][2]string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/reference/protocol.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(doc), "| `verb` | root | root-only | want: root | want: others | payload: root | payload: others |\n|---|---|---|---|---|---|---|\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	verbs := map[string][2]string{}
	for line := range strings.Lines(table) {
		f := strings.Split(strings.NewReplacer("−", "-", "`", "").Replace(strings.Trim(strings.TrimSpace(line), "|")), "|")
		require.Len(t, f, 7, line)
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
			if f[i] == "r" {
				f[i] = "0"
			}
		}
		verbs[f[0]] = [2]string{
			fmt.Sprintf("root %s, only %s, want %s: %s", f[1], f[2], f[3], f[5]),
			fmt.Sprintf("root %s, only %s, want %s: %s", f[1], f[2], f[4], f[6]),
		}
	}
	return verbs
}

// kindOf describes a payload in the words of the table. Numbers are the four of these tests,
// objects the text "x", parts two of those.
func kindOf(req *wire.Request) string {
	b := req.Value
	switch {
	case len(b) == 0:
		return ""
	case string(b) == "\xa1x":
		return "object"
	case string(b) == "\x02\x00\x00\x00\x02\x00\x00\x00\xa1x\x02\x00\x00\x00\xa1x":
		return "objects"
	case len(b) == 16 && req.Group.Verb == "split":
		return "color i64, key i64"
	case len(b) == 16 && binary.LittleEndian.Uint64(b) == 7:
		return "numbers"
	}
	return fmt.Sprintf("%q", b)
}

// TestTheVerbsInTheProtocol checks that the votes of Go and Python ranks are those in
// docs/reference/protocol.md, for every verb.
func TestTheVerbsInTheProtocol(t *testing.T) {
	docs := verbsInDocs(t)
	ctx := bounded(t)
	w := &tap{Listener: testcluster.Listen(t)}
	testcluster.ServeAt(t, new(store.Server), w)
	addr := w.Addr().String()
	m := create(t, 2, addr, nil, pgroup.Config{})
	m.verbs(ctx)
	m.both(func(g *pgroup.Group) error { return pgroup.Send(ctx, g, 1-g.Rank(), "x") }, "send", "x", 0)
	m.both(func(g *pgroup.Group) error { _, err := pgroup.Recv[any](ctx, g, 1-g.Rank()); return err }, "recv", 0)
	m.both(func(g *pgroup.Group) error { return g.Shutdown(ctx) }, "shutdown")
	split(t, addr)
	votes := w.of(t, wire.OpCollect)
	require.Len(t, votes, 2*len(docs))

	seq := map[string]uint64{}
	for at, req := range votes {
		verb, c := req.Group.Verb, &req.Group
		require.Contains(t, docs, verb, "docs/reference/protocol.md does not have it")
		got := fmt.Sprintf("root %d, only %d, want %d: %s", c.Root, map[bool]int{true: 1}[c.RootOnly], c.Want, kindOf(&req))
		require.Equal(t, docs[verb][c.Rank], got, "%s of rank %d", verb, c.Rank)
		require.Equal(t, map[bool]string{true: "\x00shutdown"}[verb == "shutdown"], c.Channel)
		if verb != "split" {
			require.Equal(t, map[bool]string{true: "avg of 2"}[verb == "allreduce"], c.Label)
		}
		key := fmt.Sprintf("%d/%s/%d", c.Generation, c.Channel, c.Rank)
		seq[key]++
		require.Equal(t, seq[key], c.Seq, at)
	}
	runs := map[string]string{ // from docs/reference/protocol.md
		"world": `^$`, "to be split": `^$`, "to be split/pair": `^sub 1 of generation \d+, ranks 1 0$`,
		"to be split/0": `^split 1 of generation \d+, channel ""$`, "to be split/1": `^split 1 of generation \d+, channel ""$`,
	}
	for _, req := range w.of(t, wire.OpJoin) {
		c := &req.Group
		require.Contains(t, runs, c.Group)
		require.Regexp(t, runs[c.Group], c.Run)
		require.Regexp(t, `^pid \d+ on .+$`, c.Label)
		member := req.Value
		require.Equal(t, fmt.Sprintf("pid %d on %s", binary.LittleEndian.Uint32(member[8:]), member[14:]), c.Label)
		require.Equal(t, []byte{0, byte(len(member) - 14)}, member[12:14])
	}
	for _, req := range w.of(t, wire.OpSend, wire.OpRecv) {
		c := &req.Group
		require.Equal(t, []any{1 - c.Rank, "", ""}, []any{c.Root, c.Channel, c.Verb})
		require.Equal(t, map[bool]uint64{true: 1}[req.Op == wire.OpRecv], c.Seq)
	}
	for _, req := range w.of(t, wire.OpSend) {
		require.Equal(t, []string{"string", "any"}[req.Group.Rank], req.Group.Type)
	}
}

// split lets two Go ranks split a group, and checks the names of the halves.
func split(t *testing.T, addr string) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for r := range 2 {
		all.Go(func() {
			g, err := pgroup.Create(t.Context(), pgroup.Config{Name: "to be split", Rank: r, Size: 2, Address: "muster://" + addr})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = g.Close() }()
			half, err := g.Split(t.Context(), r, 0)
			if err != nil {
				t.Error(err)
				return
			}
			_ = half.Close()
			pair, err := g.Sub(t.Context(), "pair", 1, 0)
			if err != nil {
				t.Error(err)
				return
			}
			_ = pair.Close()
		})
	}
}
