package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/pgroup"
)

// The kinds of trouble with a connection from one rank to another.
const (
	refused     = "refused"
	silent      = "silent"      // no answer
	unreachable = "unreachable" // there is no route
	foreign     = "foreign"     // another program answers
	small       = "small"       // it connects, and no byte arrives
	up          = "up"          // few bytes pass, many do not, towards the dialed rank
	down        = "down"        // the same, from the dialed rank
)

const atOnce = 64 // concurrent dials of one rank

// trouble is a connection that does not work.
type trouble struct {
	From, To int
	Kind     string
	Detail   string
}

// where is the address at which a rank listens for the test connections of the others, or why it
// does not.
type where struct{ Addr, Token, Err string }

// links makes each rank listen, and dial every other rank.
func (w *groupCheck) links(ctx context.Context) error {
	at := where{Token: rand.Text()}
	peerListener, err := w.listenForPeers(ctx, at.Token)
	if err != nil {
		at.Err = innermost(err)
		w.find("links", problem("this rank can listen nowhere: "+at.Err, "packages gather and collective connect ranks with each other: let it listen at its address in the network"))
	} else {
		defer peerListener.close()
		at.Addr = peerListener.listener.Addr().String()
	}
	all, err := pgroup.AllGather(ctx, w.group, at)
	if err != nil {
		return err
	}
	bad := w.dialInTime(ctx, all)
	// no rank closes its listener before all have dialed
	theirs, err := pgroup.Gather(ctx, w.group, 0, bad)
	if err != nil || w.group.Rank() != 0 {
		return err
	}
	bad = slices.Concat(theirs...)
	if len(bad) == 0 && !slices.ContainsFunc(all, func(at where) bool { return at.Err != "" }) {
		w.say("links", ok("each rank can connect to every other"))
	}
	w.say("links", w.explain(bad, all)...)
	return nil
}

// dialInTime calls dialAll with half of the time until the deadline.
func (w *groupCheck) dialInTime(ctx context.Context, all []where) []trouble {
	if end, isSet := ctx.Deadline(); isSet {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	return w.dialAll(ctx, all)
}

// dialAll tests the connections to all other ranks.
func (w *groupCheck) dialAll(ctx context.Context, all []where) (bad []trouble) {
	var mu sync.Mutex // protects bad
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	n := w.group.Size()
	for i := 1; i < n; i++ {
		// in different orders, so that not all ranks dial the same one
		to := (w.group.Rank() + i) % n
		slots <- struct{}{}
		if ctx.Err() != nil {
			w.find("links", warning(fmt.Sprintf("there was no time to try the ways to %d more ranks", n-i), "give it more: --timeout"))
			break
		}
		if all[to].Err != "" {
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if kind, err := w.try(ctx, all[to]); kind != "" {
				mu.Lock()
				defer mu.Unlock()
				bad = append(bad, trouble{w.group.Rank(), to, kind, innermost(err)})
			}
		})
	}
	wg.Wait()
	return bad
}

// bulk is more than one packet on any network.
const bulk = 64 << 10

// try dials, sends the token, and transfers many bytes in both directions.
func (w *groupCheck) try(ctx context.Context, to where) (kind string, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.answerTimeout())
	defer cancel()
	c, err := w.System.Dial(ctx, "tcp", to.Addr)
	if err != nil {
		return dialKind(ctx, err), err
	}
	defer c.Close()
	token := make([]byte, len(to.Token))
	for _, s := range []struct {
		kind        string
		send, fetch []byte
	}{{small, []byte(to.Token), token}, {up, make([]byte, bulk), make([]byte, 1)}, {down, nil, make([]byte, bulk)}} {
		_ = c.SetDeadline(time.Now().Add(w.answerTimeout())) // cannot fail for a socket
		if _, err = c.Write(s.send); err == nil {
			err = readFull(c, s.fetch)
		}
		switch {
		case err == nil && string(token) != to.Token:
			return foreign, errors.New("it answers something else")
		case err == nil:
		case !isTimeout(err) && s.kind == small:
			return foreign, err // it closed the connection after the token
		default:
			return s.kind, err
		}
	}
	return "", nil
}

// dialKind returns the kind of trouble for the error of a dial.
func dialKind(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case ctx.Err() != nil || isTimeout(err):
		return silent
	}
	return unreachable
}

func isTimeout(err error) bool {
	n, isNet := errors.AsType[net.Error](err)
	return isNet && n.Timeout()
}

// route is a pair of hosts with one kind of trouble.
type route struct {
	from, to int // hosts
	kind     string
}

// explain groups the troubles by hosts, because a firewall rarely distinguishes ranks.
func (w *groupCheck) explain(bad []trouble, all []where) (fs []Finding) {
	by := map[route][]trouble{}
	for _, t := range bad {
		r := route{w.members[t.From].Node, w.members[t.To].Node, t.Kind}
		by[r] = append(by[r], t)
	}
	routes := slices.SortedFunc(maps.Keys(by), func(a, b route) int { return cmp.Or(a.from-b.from, a.to-b.to, cmp.Compare(a.kind, b.kind)) })
	for _, r := range routes {
		text := w.pairs(by[r]) + ": " + w.kindText(r.kind, by[r][0])
		if r.from != r.to && !slices.ContainsFunc(routes, func(o route) bool { return o.from == r.to && o.to == r.from }) {
			text += "; the other direction works"
		}
		fs = append(fs, problem(text, w.kindAdvice(r.kind, all[by[r][0].To].Addr)))
	}
	return fs
}

// pairs describes which ranks cannot connect to which.
func (w *groupCheck) pairs(ts []trouble) string {
	var from, to []int
	for _, t := range ts {
		from, to = append(from, t.From), append(to, t.To)
	}
	slices.Sort(from)
	slices.Sort(to)
	from, to = slices.Compact(from), slices.Compact(to)
	text := fmt.Sprintf("%s on %s cannot talk to %s on %s", status.RankList(from), w.members[from[0]].Host, status.RankList(to), w.members[to[0]].Host)
	whole := len(from) * len(to)
	if slices.Equal(from, to) {
		whole -= len(from) // a rank does not dial itself
	}
	if len(ts) < whole {
		text += fmt.Sprintf(" (%d of the pairs)", len(ts))
	}
	return text
}

func (w *groupCheck) kindText(kind string, t trouble) string {
	return map[string]string{
		refused:     "the connection is refused",
		silent:      fmt.Sprintf("no answer within %v", w.answerTimeout()),
		unreachable: t.Detail,
		foreign:     "another process answers there",
		small:       "it connects, and no byte comes through",
		up:          "few bytes pass, and 64 KiB do not",
		down:        "few bytes pass, and 64 KiB do not come back",
	}[kind]
}

func (w *groupCheck) kindAdvice(kind, addr string) string {
	first, last := w.System.Ephemeral()
	host, _, _ := net.SplitHostPort(addr)
	if link.IsLoopback(host) {
		return "that rank listens at loopback, since its way to the store leads there: " + elsewhere(w.group.Config().Address) + ", everywhere"
	}
	open := fmt.Sprintf("let TCP from there to ports %d to %d of %s through", first, last, host)
	return map[string]string{
		refused:     "a firewall rejects it: " + open,
		silent:      "a firewall or security group drops it: " + open,
		unreachable: "look at \"ip route get " + host + "\" there: the hosts have no network in common on that interface",
		foreign:     "two hosts have the same address, or a proxy stands between them: " + host,
		small:       "something between accepts connections and passes nothing on: a proxy, or a load balancer",
		up:          "packets of full size are lost: is the MTU the same on both hosts, and on all between? \"ping -M do -s 1472 " + host + "\"",
		down:        "packets of full size are lost: is the MTU the same on both hosts, and on all between? \"ping -M do -s 1472 " + host + "\"",
	}[kind]
}
