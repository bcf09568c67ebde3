package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// Stacks. A client asks the store (OpStacks) what a rank is doing. The server asks the process of
// that rank, by an OpStacks with ID 0 on its connection, as it sends liveness probes. The process
// answers with an OpStacks with ID 0, whatever its callers do. A relay forwards both.

const (
	stacksTimeout = 2 * time.Second // for the answer of a process
	maxStacks     = 64 << 10        // bytes of an answer
	maxQueries    = 64              // of a store at the same time

	maxStacksOfProcess = 16 << 20 // bytes of a process's stacks that are looked at
)

// Stacks returns the stacks of the process of a rank: of all goroutines, or of all threads of a
// Python process, at most 64 KiB of text. A process that does not answer within 2 seconds is
// ErrUnavailable: it may be stopped. A server answers only peers that Server.Stacks or Access.Stacks
// allows it, and logs requests, at most 100 in a second.
func (s *Store) Stacks(ctx context.Context, generation uint64, rank int) (string, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpStacks, Group: wire.Contribution{Generation: generation, Rank: rank}}, &rep)
	return string(rep.Value), err
}

// processStacks returns the stacks of all goroutines of this process, cut to maxStacks.
//
// A process may have thousands of goroutines, of which a few say why it hangs. So goroutines whose
// stacks differ only in arguments are one entry, goroutine 1 is first, and the other entries follow by
// their number of goroutines, the rarest first: what is cut off are pools of workers.
func processStacks() []byte {
	all := make([]byte, 1<<20)
	n := runtime.Stack(all, true)
	for n == len(all) && n < maxStacksOfProcess {
		all = make([]byte, 2*n)
		n = runtime.Stack(all, true)
	}
	text := groupStacks(string(all[:n]))
	return []byte(text[:min(len(text), maxStacks)])
}

// stackArguments are the parts of a stack that differ among goroutines that do the same.
var stackArguments = regexp.MustCompile(`\(0x[^)\n]*\)|\(\{0x[^)\n]*\)| \+0x[0-9a-f]+| in goroutine \d+`)

// groupStacks groups the text of runtime.Stack.
func groupStacks(all string) string {
	type entry struct {
		state, stack string
		ids          []string
	}
	var entries []*entry
	byStack := map[string]*entry{}
	for g := range strings.SplitSeq(strings.TrimSpace(all), "\n\n") {
		head, stack, _ := strings.Cut(g, "\n")
		id, state, _ := strings.Cut(strings.TrimPrefix(head, "goroutine "), " ")
		stack = stackArguments.ReplaceAllString(stack, "")
		e := byStack[stack]
		if e == nil {
			e = &entry{state: state, stack: stack}
			byStack[stack] = e
			entries = append(entries, e)
		}
		e.ids = append(e.ids, id)
	}
	size := func(e *entry) int {
		if e.ids[0] == "1" {
			return 0
		}
		return len(e.ids)
	}
	slices.SortStableFunc(entries, func(a, b *entry) int { return cmp.Compare(size(a), size(b)) })
	var text strings.Builder
	for _, e := range entries {
		more := ""
		if n := len(e.ids) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(&text, "goroutine %s%s %s\n%s\n\n", e.ids[0], more, e.state, e.stack)
	}
	return text.String()
}

// stackQuery is an OpStacks that is under way.
type stackQuery struct {
	who     string
	session uint64
	peer    sessionConn // nil: the rank is in this process
	answer  chan []byte // gets one answer
}

// answerStacks answers all queries for the stacks of a session. An answer to none is dropped. The caller
// holds mu.
func (m *Memory) answerStacks(session uint64, text []byte) {
	for _, q := range m.queries {
		if q.session == session && len(q.answer) == 0 {
			q.answer <- bytes.Clone(text[:min(len(text), maxStacks)])
		}
	}
}

// beginStacks begins an OpStacks. It returns a query, which finishStacks answers; or nil if rep is the answer.
// allowed returns why the caller may not see ranks of a group, or "". The caller holds mu.
func (m *Memory) beginStacks(req *wire.Request, rep *wire.Reply, allowed func(group string) string) *stackQuery {
	refuse := func(code wire.Code, why string) *stackQuery {
		*rep = wire.Reply{Code: code, Detail: why}
		return nil
	}
	group, label, session, ok := m.machine.Member(req.Group.Generation, req.Group.Rank)
	if why := allowed(group); why != "" { // also of a rank that does not exist
		return refuse(wire.CodeDenied, why)
	}
	q := &stackQuery{who: fmt.Sprintf("rank %d of group %q (%s)", req.Group.Rank, group, label), session: session, peer: m.conns[session], answer: make(chan []byte, 1)}
	switch {
	case !ok:
		return refuse(wire.CodeNotFound, fmt.Sprintf("generation %d has no rank %d that is present", req.Group.Generation, req.Group.Rank))
	case session != core.Local && q.peer == nil:
		return refuse(wire.CodeUnavailable, q.who+" is not connected at the moment")
	case len(m.queries) >= maxQueries:
		return refuse(wire.CodeFull, fmt.Sprintf("%d processes are asked for their stacks already", maxQueries))
	}
	m.queries = append(m.queries, q)
	return q
}

// finishStacks answers q in rep, until ctx or stopped ends. It takes up to stacksTimeout.
func (m *Memory) finishStacks(ctx context.Context, stopped <-chan struct{}, q *stackQuery, rep *wire.Reply) {
	defer func() {
		m.mu.Lock()
		m.queries = slices.DeleteFunc(m.queries, func(other *stackQuery) bool { return other == q })
		m.mu.Unlock()
	}()
	if q.peer == nil {
		*rep = wire.Reply{Value: processStacks()}
		return
	}
	var w witness
	c, direct := q.peer.(*conn)
	if direct {
		w.ran(c)
	}
	q.peer.askStacks()
	ctx, cancel := context.WithTimeout(ctx, stacksTimeout)
	defer cancel()
	select {
	case text := <-q.answer:
		*rep = wire.Reply{Value: text}
		return
	case <-ctx.Done():
	case <-stopped:
	}
	why := "its process may be stopped, or a thread of it may hold Python's interpreter lock (GIL), or its client is of a version without this request: on its host, " + pySpy
	if direct && w.ran(c) {
		why = "its process uses the processor: a thread of Python that holds the interpreter lock (GIL), such as a long call of C code, keeps it from answering: on its host, " + pySpy
	}
	*rep = wire.Reply{Code: wire.CodeUnavailable, Detail: fmt.Sprintf("no answer of %s within %v: %s", q.who, stacksTimeout, why)}
}

// pySpy says how to see the stacks of a process that does not answer.
const pySpy = "py-spy dump --pid PID prints the stacks of a Python process"

// stacks carries out OpStacks for a caller in this process.
func (m *Memory) stacks(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	m.mu.Lock()
	err := m.open()
	var q *stackQuery
	if err == nil {
		q = m.beginStacks(req, rep, func(string) string { return "" })
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if q != nil {
		m.finishStacks(ctx, nil, q, rep)
	}
	return ctx.Err()
}

// executeStacks carries out OpStacks: an answer of the client, or a request. The caller holds mu.
func (c *conn) executeStacks(session uint64) {
	if c.req.ID == 0 {
		c.memory.answerStacks(session, c.req.Value)
		return
	}
	if c.refuseLater() {
		return
	}
	var rep wire.Reply
	log := func(who string) {
		c.server.log().Warn("stacks requested", "peer", c.peer, "by", clip(c.hello.Key), "of", clip(who), "bytes", len(rep.Value), "refused", rep.Detail)
	}
	q := c.memory.beginStacks(&c.req, &rep, c.refuseStacks)
	if q == nil {
		log("")
		c.reply(wire.OpStacks, c.req.ID, &rep)
		return
	}
	c.answerLater(wire.OpStacks, func() *wire.Reply {
		c.memory.finishStacks(context.Background(), c.server.stopped, q, &rep)
		log(q.who)
		return &rep
	})
}

// refuseStacks returns why the peer may not have the stacks of a group's ranks, or "".
// The caller holds the Memory's mu.
func (c *conn) refuseStacks(group string) string {
	switch {
	case c.stream != nil:
		return "stacks are not for peers of a relay: ask the store itself"
	case slices.ContainsFunc(c.stackPrefixes, func(prefix string) bool { return strings.HasPrefix(group, prefix) }):
		return ""
	}
	return "no right to see stacks: set Access.Stacks, or Server.Stacks without Access (muster serve --stacks, muster run --stacks)"
}

// stackPrefixesOf returns the prefixes of the groups whose stacks a peer may see.
func (s *Server) stackPrefixesOf(matched []int) (prefixes []string) {
	if len(s.Access) == 0 && s.Stacks {
		return []string{""}
	}
	for _, i := range matched {
		if s.Access[i].Stacks {
			prefixes = append(prefixes, s.Access[i].Prefix)
		}
	}
	return prefixes
}

// askStacks implements sessionConn.
func (c *conn) askStacks() {
	c.out.AppendUrgent(func(b []byte) []byte { return wire.AppendReply(b, wire.OpStacks, 0, new(wire.Reply)) })
	c.out.Flush()
}

// askStacks implements sessionConn.
func (b *relayedConn) askStacks() {
	b.relay.out.Append(func(to []byte) []byte { return wire.AppendRelayReply(to, b.number, wire.OpStacks, 0, new(wire.Reply)) })
	b.relay.out.Flush()
}
