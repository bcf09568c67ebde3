package scenario

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/muster-pg/muster/store"
)

// world is the store of one file, its sessions and their calls.
type world struct {
	engine    *Engine
	open      func(name string) Session
	sessions  []*session // in the order in which they were opened
	leases    map[string]*lease
	revisions map[string]store.Revision
	out       strings.Builder // of the block
	running   sync.WaitGroup  // calls
	probe     *store.Store    // asks for the status; nil if time is virtual

	mu sync.Mutex // protects the calls of sessions, their output, and what they know of groups, leases and revisions
}

// session is a session, with the calls that have not returned or whose output was not shown.
type session struct {
	*store.Store
	name    string
	on      Session
	crashed bool
	calls   []*call
	groups  map[string]*member
	joined  string // the group that it joined last
}

// call is a call of a verb.
type call struct {
	command
	does verb
	w    *world
	s    *session
	// The place of s among the sessions of the command, and how many these are.
	place, places int

	cancel   context.CancelFunc
	returned chan struct{} // closed when it has returned
	lines    []string      // output that was not shown
	state    state
}

// state says whether a call waits.
type state int

const (
	waits state = iota
	done
	serves // it has returned, and may have more output
)

// verb is what a command does.
type verb struct {
	do    func(ctx context.Context, c *call) (line string) // it may say other lines before
	waits bool                                             // it may wait in the store
}

func (w *world) session(name string) *session {
	for _, s := range w.sessions {
		if s.name == name {
			return s
		}
	}
	s := &session{name: name, on: w.open(name), groups: map[string]*member{}}
	s.Store = store.New(s.on.Engine)
	w.sessions = append(w.sessions, s)
	return s
}

// run carries out a command, for each of its sessions.
func (w *world) run(c command) {
	if len(c.args) == 0 {
		c.t.Fatalf("%s: it has no argument", c)
	}
	first := c.args[0].Key
	if c.verb == "advance" {
		time.Sleep(c.parseDuration(first))
		w.settle()
		return
	}
	names := strings.Split(first, ",")
	for i, name := range names {
		s := w.session(name)
		w.start(&call{command: c, does: s.verb(c), w: w, s: s, place: i, places: len(names)})
		w.settle()
	}
}

// verb returns what a command of the session does.
func (s *session) verb(c command) verb {
	if own := s.on.Verbs[c.verb]; own != nil {
		return verb{do: func(ctx context.Context, k *call) string { return own(ctx, k.words()) }}
	}
	does, ok := keyVerbs[c.verb]
	if !ok {
		does, ok = groupVerbs[c.verb]
	}
	if !ok {
		c.t.Fatalf("%s: no such verb", c)
	}
	return does
}

func (w *world) start(k *call) {
	ctx, cancel := context.WithCancel(context.Background())
	if d := k.duration("timeout"); d != 0 {
		ctx, cancel = context.WithTimeout(ctx, d)
	}
	k.cancel, k.returned = cancel, make(chan struct{})
	w.mu.Lock()
	k.s.calls = append(k.s.calls, k)
	w.mu.Unlock()
	w.running.Go(func() {
		defer cancel()
		defer close(k.returned)
		k.say(k.repeat(ctx), done)
	})
}

// repeat carries out the call as often as its option times= says, and counts results that are equal.
func (k *call) repeat(ctx context.Context) (line string) {
	count := 0
	shown := func() string {
		if count > 1 {
			return fmt.Sprintf("%s (%d times)", line, count)
		}
		return line
	}
	for range max(1, k.number("times", 0)) {
		next := k.does.do(ctx, k)
		if count > 0 && next != line {
			k.say(shown(), waits)
			count = 0
		}
		line = next
		count++
	}
	return shown()
}

// ends gives the end of a caller's context one text, whichever side noticed it first: errors.Is does
// not tell them apart either.
var ends = strings.NewReplacer("context canceled", "cancelled", "context deadline exceeded", "timed out")

// The numbers of generations and processes say nothing, and scripts that need no clock run on real sockets,
// too.
var (
	generations = regexp.MustCompile(`generation [0-9]+`)
	joined      = regexp.MustCompile(`which joined \S+ ago`)
	process     = regexp.MustCompile(`pid [0-9]+ on [^ ,]+`)
)

// say adds output, and sets the state.
func (k *call) say(line string, state state) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if line != "" {
		line = generations.ReplaceAllString(ends.Replace(line), "generation N")
		line = process.ReplaceAllString(line, "pid P on H")
		k.lines = append(k.lines, joined.ReplaceAllString(line, "which joined T ago"))
	}
	k.state = state
}

// settle returns when each call has returned or waits, and adds what was said to the output.
func (w *world) settle() {
	if w.probe == nil {
		time.Sleep(w.engine.Lag)
		synctest.Wait()
	}
	for w.probe != nil && !w.settled() {
		time.Sleep(time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sessions {
		left := s.calls[:0]
		for _, k := range s.calls {
			for _, line := range k.lines {
				if !s.crashed {
					w.out.WriteString(s.name + ": " + line + "\n")
				}
			}
			k.lines = nil
			if k.state != done {
				left = append(left, k)
			}
		}
		s.calls = left
	}
}

// settled reports whether only calls that wait have not returned, and all of them wait in the store,
// by its status. A call that the store counts has not returned, so the numbers are equal only when
// no call, and no reply, is on its way.
func (w *world) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	here := 0
	for _, s := range w.sessions {
		for _, k := range s.calls {
			switch {
			case k.state != waits || s.crashed:
			case k.does.waits:
				here++
			default:
				return false
			}
		}
	}
	status, err := w.probe.Status(context.Background(), "")
	if errors.Is(err, store.ErrUnsupported) { // of another server, which counts no calls
		return here == 0
	}
	return err == nil && status.Server.Calls == int64(here)
}

// block returns the output of a block.
func (w *world) block() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sessions {
		for _, k := range s.calls {
			if k.state == waits && !s.crashed {
				w.out.WriteString(s.name + " waits: " + k.String() + "\n")
			}
		}
	}
	out := w.out.String()
	w.out.Reset()
	if out == "" {
		return "nothing happens\n"
	}
	return out
}

// end closes all sessions.
func (w *world) end() {
	if w.probe != nil {
		defer w.probe.Close()
	}
	for _, s := range w.sessions {
		for _, k := range s.calls {
			k.cancel()
		}
		_ = s.Close()
	}
	w.running.Wait()
}
