package tcpstore_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// protocols are those of files that need other fields than the defaults.
var protocols = map[string]*tcpstore.Protocol{
	"ranks":   {Ranks: []string{"ready/{rank}", "{rank}/*"}},
	"session": {Sessions: []string{"/nixl/agents/"}},
	"ttl":     {TTL: []tcpstore.Rule{{"job/keep/", time.Hour}, {"job/", time.Minute}}},
}

// TestProtocol runs the rules of PyTorch's protocol as text. In testdata/protocol its operations, by their
// names in PyTorch's source, are requests of bare connections, "leave" ends one, and the verbs of package
// scenario are those of a Go client of the same store.
func TestProtocol(t *testing.T) {
	scenario.Run(t, "testdata/protocol", scenario.Engine{
		Name: "PyTorch's protocol",
		Start: func(t *testing.T, _ scenario.Settings) func(string) scenario.Session {
			p := protocols[path.Base(t.Name())]
			if p == nil {
				p = new(tcpstore.Protocol)
			}
			s := piped(t, new(store.Server), p)
			return func(string) scenario.Session {
				return scenario.Session{Engine: scenario.Shared{Engine: s.Server.Engine}, Verbs: (&speaker{client: s.client(t)}).verbs(t)}
			}
		},
	})
}

// speaker is a connection that is asked for one thing after the other.
type speaker struct {
	*client
	waits atomic.Bool // it reads the answer of a WAIT or a BARRIER
}

// verbs returns the operations of the protocol.
func (s *speaker) verbs(t *testing.T) map[string]func(ctx context.Context, args []string) string {
	verbs := map[string]func(ctx context.Context, args []string) string{
		"leave": func(context.Context, []string) string { _ = s.Close(); return "" },
	}
	for op := tcpwire.OpSet; op <= tcpwire.OpBarrier; op++ {
		verbs[op.String()] = func(ctx context.Context, args []string) string { return s.ask(ctx, request(t, op, args)) }
	}
	return verbs
}

// ask sends a request, and returns the text of its reply. While a call waits, others are not answered: a
// CANCEL_WAIT answers that call.
func (s *speaker) ask(ctx context.Context, req tcpwire.Request) string {
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	waits := s.waits.Load()
	_, _ = s.Write(s.bytes(req)) // an error: read returns it, too
	if waits || !req.Op.Answered() {
		return ""
	}
	s.waits.Store(req.Op == tcpwire.OpWait || req.Op == tcpwire.OpBarrier)
	defer s.waits.Store(false)
	rep, err := s.read(req.Op, len(req.Keys))
	if err != nil {
		return "the connection has ended"
	}
	return answer(req.Op, rep)
}

// request returns the request of an operation with its parts.
func request(t *testing.T, op tcpwire.Op, words []string) tcpwire.Request {
	req := tcpwire.Request{Op: op}
	switch op {
	case tcpwire.OpCheck, tcpwire.OpWait, tcpwire.OpMultiGet:
		req.Keys = words
		return req
	case tcpwire.OpMultiSet:
		for pair := range slices.Chunk(words, 2) {
			req.Keys, req.Values = append(req.Keys, pair[0]), append(req.Values, []byte(pair[1]))
		}
		return req
	}
	if len(words) > 0 {
		req.Key, words = words[0], words[1:]
	}
	for _, word := range words {
		switch op {
		case tcpwire.OpAdd, tcpwire.OpBarrier:
			n, err := strconv.ParseInt(word, 10, 64)
			require.NoError(t, err)
			req.N = n
		default:
			req.Old, req.Value = req.Value, []byte(word)
		}
	}
	return req
}

// answer returns the text of a reply.
func answer(op tcpwire.Op, rep tcpwire.Reply) string {
	switch op {
	case tcpwire.OpCheck:
		return []string{tcpwire.Ready: "ready", tcpwire.NotReady: "not ready"}[rep.N]
	case tcpwire.OpWait, tcpwire.OpBarrier, tcpwire.OpCancelWait:
		return []string{tcpwire.StopWaiting: "go on", tcpwire.WaitCanceled: "cancelled"}[rep.N]
	case tcpwire.OpGet, tcpwire.OpCompareSet:
		return fmt.Sprintf("%q", rep.Value)
	case tcpwire.OpMultiGet:
		return fmt.Sprintf("%q", rep.Values)
	case tcpwire.OpListKeys:
		return fmt.Sprintf("%q", rep.Keys)
	case tcpwire.OpQueuePop:
		return fmt.Sprintf("%q of %d", rep.Value, rep.N)
	}
	return strconv.FormatInt(rep.N, 10)
}
