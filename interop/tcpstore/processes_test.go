package tcpstore_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// published returns the processes that are published in s, when they are as wanted.
func published(t *testing.T, s *service, wanted func(all []tcpwire.Process) bool) (all []tcpwire.Process) {
	t.Helper()
	testcluster.Eventually(t, testTimeout, func() bool {
		all = nil
		for e, err := range s.List(s.ctx, tcpwire.ProcessesKey) {
			require.NoError(t, err)
			require.Positive(t, e.TTL)
			var some tcpwire.Processes
			require.NoError(t, some.Decode(e.Value))
			all = append(all, some.Processes...)
		}
		return wanted(all)
	}, "the processes are published as wanted")
	return all
}

// as connects as a process that says that its number is pid.
func (s *service) as(t *testing.T, pid int) *client {
	c := s.raw(t)
	c.send(of(tcpwire.OpValidate), tcpwire.Request{Op: tcpwire.OpPing, N: int64(pid)})
	require.EqualValues(t, pid, c.reply(tcpwire.OpPing, 0).N)
	return c
}

func TestProcessesArePublished(t *testing.T) { virtually(t, new(store.Server), processesArePublished) }

func processesArePublished(t *testing.T, s *service) {
	one, two := s.as(t, 1<<22+1), s.as(t, 1<<22+2) // there are no such processes
	one.send(set("/default_pg/0//cpu//0/0", "address"), set("/n7", "x"), wait("/n7", "/default_pg/0//cpu//0/2"))
	two.send(set("/default_pg/0//cpu//0/1", "address"))
	two.works()
	all := published(t, s, func(all []tcpwire.Process) bool { return len(all) == 2 && len(all[0].Waits)+len(all[1].Waits) == 1 })
	for _, p := range all {
		require.Equal(t, -1, p.Rank)
		require.Empty(t, p.State, "nothing is known of a process that the client only says that it is")
		switch p.Label {
		case fmt.Sprintf("pid %d at ", 1<<22+1):
			require.Equal(t, []tcpwire.GroupRank{{Group: "default_pg", Rank: 0}}, p.Members)
			require.Equal(t, "default_pg/0//cpu//0/2", p.Waits[0].Key)
			require.GreaterOrEqual(t, p.Waits[0].For, time.Second)
		case fmt.Sprintf("pid %d at ", 1<<22+2):
			require.Equal(t, []tcpwire.GroupRank{{Group: "default_pg", Rank: 1}}, p.Members)
			require.Empty(t, p.Waits)
		default:
			t.Error(p)
		}
	}

	// a wait that is given up and started again is one wait
	require.EqualValues(t, tcpwire.WaitCanceled, one.call(of(tcpwire.OpCancelWait)).N)
	one.send(wait("/default_pg/0//cpu//0/2"))
	published(t, s, func(all []tcpwire.Process) bool {
		return len(all) == 2 && (len(all[0].Waits) == 1 && all[0].Waits[0].For > time.Second || len(all[1].Waits) == 1 && all[1].Waits[0].For > time.Second)
	})

	require.Len(t, one.call(of(tcpwire.OpListKeys)).Keys, 4, "Python does not see the entry")
	_ = two.Close()
	published(t, s, func(all []tcpwire.Process) bool {
		return len(all) == 2 && (all[0].State == tcpwire.Disconnected) != (all[1].State == tcpwire.Disconnected)
	})
	again := s.as(t, 1<<22+3)
	again.send(set("/default_pg/0//cpu//0/1", "address"))
	published(t, s, func(all []tcpwire.Process) bool {
		return len(all) == 2 && all[0].State == "" && all[1].State == "" // the other process has its rank
	})
	_ = one.Close()
	_ = again.Close()
	published(t, s, func(all []tcpwire.Process) bool { return len(all) == 0 })
}

// TestProcessesOfThisHost checks what is published of a process whose connection ends on the same
// host: this one.
func TestProcessesOfThisHost(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("SKIPPED: this system does not show which process has a connection")
	}
	s := current(t)
	one, two := s.as(t, os.Getpid()), s.as(t, os.Getpid())
	all := published(t, s, func(all []tcpwire.Process) bool { return len(all) == 1 && all[0].State != "" })
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Contains(t, all[0].Label, fmt.Sprintf("pid %d on %s", os.Getpid(), host))
	require.Contains(t, all[0].Label, "tcpstore.test")
	require.Contains(t, []string{tcpwire.Sleeping, tcpwire.Computing}, all[0].State)

	// it closes its connections, and runs on
	one.send(set("/default_pg/0//cpu//0/0", "address"))
	one.works()
	other := s.as(t, 1<<22+1) // of its job
	other.send(set("/default_pg/0//cpu//0/1", "address"))
	other.works()
	all = published(t, s, func(all []tcpwire.Process) bool { return len(all) == 2 && len(all[0].Members)+len(all[1].Members) == 2 })
	require.Contains(t, []string{all[0].Label, all[1].Label}, fmt.Sprintf("pid %d at 127.0.0.1", 1<<22+1))
	_ = one.Close()
	_ = two.Close()
	published(t, s, func(all []tcpwire.Process) bool {
		return len(all) == 2 && (all[0].State == tcpwire.Exiting || all[1].State == tcpwire.Exiting)
	})
}

// TestProcessesBehindAnAccess checks that processes are published in the part of the store that they
// see, and not at all if they may not change it.
func TestProcessesBehindAnAccess(t *testing.T) {
	access := []store.Access{{Protocol: "torch", Prefix: "python/", Write: true}}
	virtually(t, &store.Server{Access: access}, processesBehindAnAccess)
}

func processesBehindAnAccess(t *testing.T, s *service) {
	c := s.as(t, 1<<22+1)
	c.works()
	part := &service{Store: store.Prefix(s.Store, "python/"), ctx: s.ctx}
	published(t, part, func(all []tcpwire.Process) bool { return len(all) == 1 })
	testcluster.Eventually(t, testTimeout, func() bool {
		for e, err := range s.List(s.ctx, tcpwire.PrefixesKey) {
			return err == nil && string(e.Value) == "python/"
		}
		return false
	}, "the whole store has the prefix")
	_ = c.Close()
	published(t, part, func(all []tcpwire.Process) bool { return len(all) == 0 })
}
