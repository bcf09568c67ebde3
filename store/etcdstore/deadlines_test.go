package etcdstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// pair is a group of two ranks, with a session each.
func pair(t *testing.T, members []*member) (ranks []*store.Store, gen uint64) {
	t.Helper()
	o := &etcdstore.Options{Root: newRoot(), Session: time.Minute, Mend: patience}
	ranks = []*store.Store{store.New(dial(t, addresses(members), o)), store.New(dial(t, addresses(members), o))}
	gens := make([]uint64, 2)
	each(2, func(i int) {
		roll, err := ranks[i].Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: 2}, nil)
		assert.NoError(t, err)
		gens[i] = roll.Generation
	})
	return ranks, gens[0]
}

// A call returns when its time is over, also if etcd stands still by then, whatever the call was doing. Otherwise it would go on for as long
// as mending may take.
func TestDeadlinesWhileEtcdStandsStill(t *testing.T) {
	type call func(ctx context.Context, s *store.Store, c wire.Contribution) error
	for name, do := range map[string]call{
		"collect": func(ctx context.Context, s *store.Store, c wire.Contribution) error {
			c.Seq, c.Root, c.Want = 1, -1, wire.WantNothing
			_, err := s.Collect(ctx, c, nil)
			return err
		},
		"recv": func(ctx context.Context, s *store.Store, c wire.Contribution) error {
			c.Seq, c.Root = 1, 1
			_, _, err := s.Recv(ctx, c)
			return err
		},
		"send": func(ctx context.Context, s *store.Store, c wire.Contribution) (err error) {
			for c.Root = 1; err == nil; { // until the stream is full, and then there is none who reads
				err = s.Send(ctx, c, nil, 0)
			}
			return err
		},
		"shrink": func(ctx context.Context, s *store.Store, c wire.Contribution) error {
			c.Size = 2
			_, err := s.Join(ctx, c, nil)
			return err
		},
		"leave": func(ctx context.Context, s *store.Store, c wire.Contribution) error {
			<-time.After(1800 * time.Millisecond)
			return s.Leave(ctx, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			members := etcd(t)
			ranks, gen := pair(t, members)
			freeze := time.AfterFunc(1500*time.Millisecond, func() { testcluster.Freeze(t, members[0]) })
			defer freeze.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- do(ctx, ranks[0], wire.Contribution{Generation: gen}) }()
			select {
			case err := <-ended:
				require.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(patience / 2):
				t.Error("it goes on")
			}
			testcluster.Thaw(t, members[0])
		})
	}
}

// A send that waits for another one to the same rank has a deadline of its own.
func TestSendBehindAnother(t *testing.T) {
	members := etcd(t)
	ranks, gen := pair(t, members)
	c := wire.Contribution{Generation: gen, Root: 1}
	require.NoError(t, ranks[0].Send(bounded(t), c, nil, 0))
	testcluster.Freeze(t, members[0])
	ended := make(chan error, 2)
	for _, d := range []time.Duration{patience, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		go func() { ended <- ranks[0].Send(ctx, c, nil, 0) }()
		<-time.After(50 * time.Millisecond)
	}
	require.ErrorIs(t, <-ended, context.DeadlineExceeded)
	testcluster.Thaw(t, members[0])
	require.NoError(t, <-ended)
}

// Of a group's survivors all hear the same: a rank whose time was over when the last one came is in no generation of theirs.
func TestShrinkAtADeadline(t *testing.T) {
	const groups, atOnce = 150, 15
	addrs := addresses(etcd(t))
	o := &etcdstore.Options{Root: newRoot(), Session: time.Minute}
	ranks := []*store.Store{store.New(dial(t, addrs, o)), store.New(dial(t, addrs, o))}
	shrink := func(run string) {
		errs, rolls := make([]error, 2), make([]store.Roll, 2)
		begun := make(chan struct{})
		each(2, func(i int) {
			c := wire.Contribution{Group: "g", Run: run, Rank: i, Size: 2}
			roll, err := ranks[i].Join(bounded(t), c, nil)
			if !assert.NoError(t, err) {
				return
			}
			c.Generation = roll.Generation
			lasts := 2 * time.Second
			if i == 0 {
				lasts = 50 * time.Millisecond
				close(begun)
			} else {
				<-begun
				<-time.After(35*time.Millisecond + rand.N(20*time.Millisecond))
			}
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			if rolls[i], errs[i] = ranks[i].Join(ctx, c, nil); errs[i] == nil {
				c.Generation = rolls[i].Generation
			}
			if len(rolls[i].Ranks) == 1 {
				c.Rank = 0
			}
			if !errors.Is(errs[i], store.ErrStale) {
				assert.NoError(t, ranks[i].Leave(bounded(t), c))
			}
		})
		if errors.Is(errs[1], store.ErrStale) { // it came after the attempt, whose one outcome this engine does not keep for the late (storetest.Attempts)
			assert.Error(t, errs[0])
			return
		}
		assert.NoError(t, errs[1])
		if errs[0] == nil {
			assert.Equal(t, rolls[0], rolls[1])
			return
		}
		assert.ErrorIs(t, errs[0], context.DeadlineExceeded)
		assert.Equal(t, []int{1}, rolls[1].Ranks) // once the other one had left
	}
	var running sync.WaitGroup
	for i := range atOnce {
		running.Go(func() {
			for n := range groups / atOnce {
				shrink(strconv.Itoa(i) + "-" + strconv.Itoa(n))
			}
		})
	}
	running.Wait()
}

// A name and a password are shown before the first call, and that is in the call's time.
func TestSilentMemberWantsAUser(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := etcdstore.Dial(ctx, []string{silent.Addr().String()}, &etcdstore.Options{User: "me", Password: "hidden", Attempt: patience})
		ended <- err
	}()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(patience / 2):
		t.Error("it goes on")
	}
}
