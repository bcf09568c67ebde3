package status_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

// TestFetchElastic checks what is shown of elastic jobs: one with a standby, one that waits, the nodes of one,
// and one below the prefix of its group, each with many other keys.
func TestFetchElastic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(new(store.Memory))
		defer s.Close()
		below := store.Prefix(s, "jobs/a/")
		defer below.Close()
		members := map[string]*membership.Member{}
		join := func(s *store.Store, job, id string, least int) {
			m, err := membership.Join(t.Context(), s, membership.Config{Job: job, ID: id, Min: least, Max: 2, TTL: time.Second})
			require.NoError(t, err)
			members[id] = m
			synctest.Wait()
		}
		for i := range 1500 {
			require.NoError(t, s.Set(t.Context(), fmt.Sprintf("membership/a%%2Fb/checkpoint/%d/is", i), nil, nil))
		}
		for _, id := range []string{"one", "two", "three"} {
			join(s, "a/b", id, 1)
		}
		join(s, "a/b-", "four", 2)
		join(s, "a/b-", "five", 2)
		join(s, "muster-run/x", "six", 1)
		join(below, "c", "seven", 2)
		require.NoError(t, members["two"].Close())
		require.NoError(t, members["five"].Close())
		synctest.Wait()
		now := &store.Status{Groups: []store.GroupStatus{{Name: "jobs/a/membership/c/group/c view 1", Ended: -1}}}
		var got []string
		for _, j := range status.FetchElastic(t.Context(), s, now) {
			last := ""
			if len(j.Newest) > 0 {
				last = j.Newest[0].What
			}
			got = append(got, fmt.Sprintf("%s: %s: %s; %d changes", j.Name, j.State, last, j.Changes))
		}
		require.Equal(t, []string{
			"a/b-: no view: 1 of at least 2 workers; the last was view 1 of size 2: view 1 of size 2: joined four, five; 1 changes",
			"a/b: view 3 of size 2: view 3 of size 2: lost two; joined three; 3 changes",
			"nodes of x: view 1 of size 1: view 1 of size 1: joined six; 1 changes",
			"jobs/a/c: no view yet: 1 of at least 2 workers: ; 0 changes",
		}, got)
		join(s, "a/b", "eight", 1)
		require.Equal(t, "view 3 of size 2, and 1 more", status.FetchElastic(t.Context(), s, now)[1].State)
		for _, m := range members {
			require.NoError(t, m.Close())
		}
		require.Equal(t, "no view: no worker is left; the last was view 3 of size 2", status.FetchElastic(t.Context(), s, now)[1].State)
	})
}
