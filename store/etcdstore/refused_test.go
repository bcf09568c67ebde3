package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// A vote that is too large for etcd is a no: all hear so, and nobody waits for it. The group goes on.
func TestVoteTooLarge(t *testing.T) {
	ranks, gen := pair(t, etcd(t, "--max-request-bytes", "100000"))
	for seq, size := range []int{200_000, 10} {
		errs := make([]error, 2)
		each(2, func(i int) {
			c := wire.Contribution{Generation: gen, Rank: i, Seq: uint64(seq + 1), Root: -1, Want: wire.WantAll}
			_, errs[i] = ranks[i].Collect(bounded(t), c, make([]byte, size*i))
		})
		for _, err := range errs {
			if size == 10 {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, store.ErrTooLarge)
			require.ErrorContains(t, err, "--max-request-bytes")
		}
	}
}

// A roll that is too large for etcd ends for all who are in it, and holds nobody's place.
func TestRollTooLarge(t *testing.T) {
	ranks, _ := pair(t, etcd(t, "--max-request-bytes", "100000"))
	for _, size := range []int{60_000, 10} {
		errs := make([]error, 2)
		each(2, func(i int) {
			_, errs[i] = ranks[i].Join(bounded(t), wire.Contribution{Group: "large", Rank: i, Size: 2}, make([]byte, size))
		})
		for _, err := range errs {
			if size == 10 {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, store.ErrTooLarge)
			require.ErrorContains(t, err, "what the 2 ranks bring, together")
			require.ErrorContains(t, err, "--max-request-bytes")
		}
	}
}

// What waits goes on when rights that were taken have come back: a watch that was refused is opened again.
func TestRightsThatComeBack(t *testing.T) {
	members := etcd(t)
	ranks, gen := pair(t, members)
	ctl(t, members, "user add root:secret")
	ctl(t, members, "user grant-role root root")
	ended := make(chan error, 1)
	go func() { ended <- ranks[1].Follow(bounded(t), wire.Contribution{Generation: gen, Rank: 1}) }()
	ctl(t, members, "auth enable")
	members[0].kill() // so that watches are opened anew
	members[0].start(t)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ranks[1].Get(ctx, "key")
		return errors.Is(err, store.ErrDenied)
	}, patience, 10*time.Millisecond)
	<-time.After(time.Second) // the watches have heard it too
	ctl(t, members, "--user root:secret auth disable")
	abort := wire.Contribution{Generation: gen, No: wire.CodeAborted, Reason: "enough"}
	require.NoError(t, ranks[0].Leave(bounded(t), abort))
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "enough")
	case <-time.After(patience):
		t.Error("nobody was told")
	}
}

// A roll that nobody is in any more is not there, and a group whose process is no longer known to etcd is not watched.
func TestWhatNobodyIsIn(t *testing.T) {
	members := etcd(t)
	root := newRoot()
	s := store.New(dial(t, addresses(members), &etcdstore.Options{Root: root}))
	slow := 0 // calls for whose withdrawal etcd has taken longer than a rank waits for it: those may leave their key
	for i := range 20 {
		timeout := time.Duration(i)*500*time.Microsecond + 1
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err := s.Join(ctx, wire.Contribution{Group: "g", Run: fmt.Sprint(i), Size: 2}, nil)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if time.Since(start) >= timeout+store.Grace {
			slow++
		}
	}
	resp, err := plain(t, members).Get(bounded(t), root+"j/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.LessOrEqual(t, len(resp.Kvs), slow)
}

// An outage of all of etcd ends no session, if it has kept its data: its leases begin anew with it, and it is reached again in time.
func TestSessionOutlivesAnOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	members := etcd(t)
	s := store.New(dial(t, addresses(members), nil))
	lease, err := s.Lease(bounded(t), time.Hour)
	require.NoError(t, err)
	defer func() { _ = lease.Close(bounded(t)) }()
	require.NoError(t, s.Set(bounded(t), "held", nil, &store.SetOptions{Lease: lease}))
	members[0].kill()
	<-time.After(10 * time.Second)
	members[0].start(t)
	require.Eventually(t, func() bool {
		_, err = plain(t, members).Get(bounded(t), "key")
		return err == nil
	}, patience, 10*time.Millisecond)
	<-time.After(7 * time.Second) // more than a session
	_, err = s.Get(bounded(t), "held")
	require.NoError(t, err)
}
