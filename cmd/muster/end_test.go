package main_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// pair is a group of two ranks, of which the first waits in a barrier for the second.
type pair struct {
	t     *testing.T
	ctx   context.Context
	gs    [2]*pgroup.Group
	first chan error
}

// waiting forms a pair whose ranks dial the given URLs. It returns when the store has the vote of
// rank 0 and not that of rank 1.
func waiting(t *testing.T, urls ...string) *pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	p := &pair{t: t, ctx: ctx, first: make(chan error, 1)}
	joined := make(chan error, 1)
	join := func(rank int) (err error) {
		p.gs[rank], err = pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: 2, Address: urls[rank%len(urls)]})
		return err
	}
	go func() { joined <- join(0) }()
	require.NoError(t, errors.Join(join(1), <-joined))
	t.Cleanup(func() { _, _ = p.gs[0].Close(), p.gs[1].Close() })
	go func() { p.first <- p.gs[0].Barrier(ctx) }()
	probe := p.gs[1].Channel("probe")
	testcluster.Eventually(t, limit, func() bool {
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		defer stop()
		err := probe.Barrier(short)
		return err != nil && strings.Contains(err.Error(), "0: in barrier #1 ")
	}, "rank 0 waits in the barrier")
	return p
}

// goesOn checks that the barrier succeeds when rank 1 calls it too.
func (p *pair) goesOn() {
	p.t.Helper()
	assert.NoError(p.t, errors.Join(p.gs[1].Barrier(p.ctx), <-p.first))
}

// TestServeEndsWhileRanksAreInABarrier checks that the ranks get an error at once and disconnect,
// so that the server does not wait for the end of --drain.
func TestServeEndsWhileRanksAreInABarrier(t *testing.T) {
	t.Parallel()
	p, url := serve(t, "--drain", "1h")
	ranks := waiting(t, url)
	p.signal(t, syscall.SIGTERM)
	if err := <-ranks.first; !errors.Is(err, store.ErrUnavailable) || ranks.ctx.Err() != nil {
		t.Error(err)
	}
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "msg=stopped\n") {
		t.Errorf("%+v", r)
	}
}

// TestServeWithDataEndsWhileRanksAreInABarrier checks that the barrier continues at the next
// server.
func TestServeWithDataEndsWhileRanksAreInABarrier(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, url := serve(t, "--data", dir)
	ranks := waiting(t, url)
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "msg=stopped\n") {
		t.Errorf("%+v", r)
	}
	p = start(t, "serve", "--listen", strings.TrimPrefix(url, "muster://"), "--data", dir)
	p.line(t, url)
	ranks.goesOn()
}

// TestRelayEndsWhileRanksAreInABarrier checks that the ranks reconnect by the next relay, or by
// another address, and that the store does not consider them failed.
func TestRelayEndsWhileRanksAreInABarrier(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]bool{"the next relay": false, "another way": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, "--reconnect-timeout", "20s")
			p, at := relay(t, "--store", url)
			ways := at
			if other {
				ways += "," + strings.TrimPrefix(url, "muster://")
			}
			ranks := waiting(t, ways)
			p.signal(t, syscall.SIGTERM)
			if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "msg=stopped\n") {
				t.Errorf("%+v", r)
			}
			if !other {
				start(t, "relay", "--listen", strings.TrimPrefix(at, "muster://"), "--store", url).line(t, at)
			}
			ranks.goesOn()
		})
	}
}
