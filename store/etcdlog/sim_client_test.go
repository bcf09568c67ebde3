package etcdlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// simClient is a client with one session, which it resumes at the present leader, and one call at a
// time, which it repeats until it has an answer. It is a store.Engine.
type simClient struct {
	w      *world
	id     int
	chance *chance

	session, incarnation uint64 // 0: there is none yet
	token                []byte
	number, lastID       uint64
	conn                 *conn
	next                 int           // index of the process to dial next
	dead                 chan struct{} // closed when the client is killed
}

func newClient(w *world, id int, c *chance) *simClient {
	return &simClient{w: w, id: id, chance: c, next: id, dead: make(chan struct{})}
}

// Do implements store.Engine. The outcome of a call is unknown if the schedule has ended, or the client
// was killed.
func (c *simClient) Do(_ context.Context, req *wire.Request, rep *wire.Reply) error {
	latest := c.w.audit.latestChange()
	got := c.call(*req)
	if got == nil {
		return store.ErrUnknown
	}
	*rep = *got
	if req.Op != wire.OpJoin && req.Op != wire.OpCollect {
		c.w.audit.answered(latest, req, rep)
	}
	return nil
}

// Close implements store.Engine.
func (c *simClient) Close() error { return nil }

// call returns the answer to a request, or nil if the schedule has ended, or the client was killed.
func (c *simClient) call(req wire.Request) *wire.Reply {
	c.lastID++
	req.ID = c.lastID
	if req.Op.Numbered() {
		c.number++
		req.Number, req.Acked = c.number, c.number-1
	}
	for first := true; ; first = false {
		if !c.connect() {
			return nil
		}
		if !first {
			c.w.audit.count("repeats")
		}
		answers, conn := make(chan *wire.Reply, 1), c.conn
		c.w.running.Go(func() { conn.comes(req, answers) })
		if rep, ok, ended := await(c, answers, conn.broken.Done(), c.answerTimeout()); ok || ended {
			return rep
		}
		c.leave()
	}
}

// await waits for an answer, which is not ok if the connection breaks or the timeout passes before.
// ended reports whether the schedule has ended, or the client was killed.
func await[T any](c *simClient, answers <-chan T, broken <-chan struct{}, timeout time.Duration) (answer T, ok, ended bool) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case answer = <-answers:
		return answer, true, false
	case <-broken:
	case <-timer.C:
	case <-c.dead:
		ended = true
	case <-c.w.over.Done():
		ended = true
	}
	return answer, false, ended
}

// leave closes the connection.
func (c *simClient) leave() {
	if conn := c.conn; conn != nil {
		c.w.running.Go(conn.closed)
	}
	c.conn = nil
}

// connect makes a connection if there is none. It returns false if the schedule has ended, or the
// client was killed.
func (c *simClient) connect() bool {
	for c.conn == nil {
		if !c.w.sleep(c.chance.between(time.Millisecond, 50*time.Millisecond)) {
			return false
		}
		c.next++
		p := c.w.proc(c.next)
		if p == nil {
			continue
		}
		hello := wire.Request{Op: wire.OpHello, Key: fmt.Sprint("client ", c.id), Resume: c.session, Value: c.token, Incarnation: c.incarnation}
		opened, welcome := make(chan *conn, 1), new(wire.Reply)
		c.w.running.Go(func() { p.opens(hello, opened, welcome) })
		conn, ok, ended := await(c, opened, nil, c.chance.between(time.Second, 3*time.Second))
		if ok {
			c.opened(conn, welcome)
			continue
		}
		c.w.running.Go(func() { // the connection may be opened later
			select {
			case conn := <-opened:
				if conn != nil {
					conn.closed()
				}
			case <-c.w.over.Done():
			}
		})
		if ended {
			return false
		}
	}
	return true
}

func (c *simClient) opened(conn *conn, welcome *wire.Reply) {
	if conn == nil {
		return
	}
	if c.session != 0 && conn.session != c.session {
		c.w.audit.breaks("T1 no session is lost whose client is there", "client %d had session %d, and has %d now", c.id, c.session, conn.session)
	}
	if c.session != 0 {
		c.w.audit.count("resumed")
	}
	c.conn, c.session, c.token, c.incarnation = conn, conn.session, bytes.Clone(welcome.Value), welcome.Rev
}

// answerTimeout returns the time without an answer after which a client makes another connection. A
// client with a long one receives what a leader that was stopped sends when it continues.
func (c *simClient) answerTimeout() time.Duration {
	if c.chance.is(0.3) {
		return c.chance.between(6*time.Second, 10*time.Second)
	}
	return c.chance.between(time.Second, 3*time.Second)
}

// errands makes calls that use keys.
func (c *simClient) errands() {
	defer c.leave()
	s := store.New(c)
	calls := c.w.history.Client(s, c.chance.Rand)
	for n := 1; c.w.stop.Err() == nil && c.w.sleep(c.chance.between(0, 30*time.Millisecond)); n++ {
		key, what := simKeys[c.chance.IntN(3)], c.chance.IntN(9)
		if c.w.quiet && c.chance.is(0.95) {
			what = 8
		}
		switch what {
		case 0, 1:
			_ = s.Set(context.Background(), "large", make([]byte, valueBytes), nil)
		case 2:
			c.fleeting(s, n)
		case 3, 4, 5:
			calls.Call(context.Background(), key)
		default:
			calls.Do(context.Background(), wire.OpGet, key)
		}
	}
}

// fleeting sets an entry with a TTL, and checks whether it exists.
func (c *simClient) fleeting(s *store.Store, n int) {
	ttl := c.chance.between(200*time.Millisecond, lastTTL)
	key, began := fmt.Sprint("fleeting ", c.id, " ", n), time.Now()
	if s.Set(context.Background(), key, []byte("x"), &store.SetOptions{TTL: ttl}) != nil {
		return
	}
	c.w.audit.fleets(key)
	c.w.sleep(c.chance.between(0, ttl))
	if _, err := s.Get(context.Background(), key); errors.Is(err, store.ErrNotFound) && time.Since(began) < ttl {
		c.w.audit.breaks("T2 an entry is there for as long as it was to be", "%s is gone after %v of %v", key, time.Since(began), ttl)
	}
}

// rank runs a member of a group, which runs all-gathers round by round, and barriers that may time out
// in between. Rank 0 says which round is the last.
func (c *simClient) rank(rank, size int) {
	defer c.leave()
	a := c.w.audit
	member := wire.Contribution{Group: "group", Run: "run", Rank: rank, Size: size, Label: fmt.Sprint("rank ", rank), Root: -1}
	rep := c.call(wire.Request{Op: wire.OpJoin, Group: member, Value: []byte("member"), Claim: []byte{byte(rank + 1)}, Attempt: 1})
	if rep == nil {
		return
	}
	if rep.Code != wire.CodeOK {
		a.breaks("G1 a group of ranks that are there is formed", "rank %d: %s %s", rank, rep.Code, rep.Detail)
		return
	}
	vote := wire.Contribution{Generation: rep.Rev, Rank: rank, Root: -1}
	for round := 1; c.w.sleep(c.w.rest(c.chance)); round++ {
		goesOn := "and on"
		if rank == 0 && c.w.stop.Err() != nil {
			goesOn = "the last"
		}
		payload := fmt.Sprintf("round %d of rank %d, %s", round, rank, goesOn)
		vote.Verb, vote.Want, vote.Type = "allgather", wire.WantAll, "text"
		vote.Seq++
		rep := c.call(wire.Request{Op: wire.OpCollect, Value: []byte(payload), Group: vote})
		if rep == nil || !a.gathered(vote.Seq, rank, size, payload, rep) || bytes.HasSuffix(rep.Values[0], []byte("the last")) {
			return
		}
		vote.Verb, vote.Want, vote.Type = "barrier", wire.WantNothing, ""
		vote.Seq++
		if rep = c.call(wire.Request{Op: wire.OpCollect, Group: vote, Timeout: c.chance.between(time.Millisecond, time.Second)}); rep == nil {
			return
		}
		a.decided(vote.Seq, rep)
	}
}
