package tcpstore_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
)

func TestTTLByPrefix(t *testing.T) {
	s := serve(t, &tcpstore.Protocol{TTL: []tcpstore.Rule{{"job/keep/", time.Hour}, {"job/", time.Minute}}}, nil)
	c := s.client(t)
	c.send(
		set("/job/set", "1"), set("/other", "1"), set("/job/keep/set", "1"),
		tcpwire.Request{Op: tcpwire.OpAppend, Key: "/job/append", Value: []byte("v")},
		tcpwire.Request{Op: tcpwire.OpMultiSet, Keys: []string{"/job/multi"}, Values: [][]byte{nil}},
	)
	c.call(add("/job/add", 1))
	c.call(add("init/", 1))
	c.call(tcpwire.Request{Op: tcpwire.OpCompareSet, Key: "/job/swap", Value: []byte("1")})
	c.call(tcpwire.Request{Op: tcpwire.OpCompareSet, Key: "/job/swap", Old: []byte("1"), Value: []byte("2")})
	got := map[string]time.Duration{}
	for e, err := range s.List(s.ctx, "") {
		require.NoError(t, err)
		got[e.Key] = e.TTL.Round(10 * time.Minute)
		if e.TTL > 0 {
			got[e.Key] = e.TTL.Round(time.Minute)
		}
	}
	require.Equal(t, map[string]time.Duration{
		"job/set": time.Minute, "job/append": time.Minute, "job/multi": time.Minute, "job/add": time.Minute, "job/swap": time.Minute,
		"job/keep/set": time.Hour, "other": 0, tcpstore.InitKey: 0,
	}, got)
}

// TestLostRanks checks that a client that waits for a key of a lost rank gets an error at once, and
// that its connection still works.
func TestLostRanks(t *testing.T) {
	s := serve(t, &tcpstore.Protocol{Ranks: []string{"ready/{rank}", "{rank}/*"}}, nil)
	one, two, c := s.client(t), s.client(t), s.client(t)
	one.send(set("/ready/1", ""))
	one.works()
	two.send(set("/2/address", ""))
	two.works()
	c.send(wait("/ready/1", "/never", "/1/more", "/2/more"))
	c.silent()
	_ = two.Close()
	require.EqualValues(t, tcpwire.WaitCanceled, c.reply(tcpwire.OpWait, 4).N)
	c.works()
	require.EqualValues(t, tcpwire.StopWaiting, c.call(wait("/2/address")).N, "what it has said is there")
	require.EqualValues(t, tcpwire.WaitCanceled, c.call(wait("/ready/2")).N, "it is still lost")
	c.send(wait("/1/more"))
	c.silent()
	again := s.client(t)
	again.send(set("/ready/2", "")) // another process is that rank now
	again.works()
	require.EqualValues(t, tcpwire.WaitCanceled, c.call(of(tcpwire.OpCancelWait)).N)
	c.send(wait("/2/more"))
	c.silent()
	again.send(set("/2/more", ""))
	require.EqualValues(t, tcpwire.StopWaiting, c.reply(tcpwire.OpWait, 1).N)
}

// TestRanksOfAnotherRun checks that ranks that were lost in one run of a job are not lost in the
// next run.
func TestRanksOfAnotherRun(t *testing.T) {
	s := serve(t, &tcpstore.Protocol{Ranks: []string{"ready/{rank}"}}, nil)
	for run := range 3 {
		one, two := s.client(t), s.client(t)
		one.send(set("/ready/1", ""))
		one.works()
		one.send(wait("/ready/2"))
		one.silent()
		two.send(set("/ready/2", ""))
		require.EqualValues(t, tcpwire.StopWaiting, one.reply(tcpwire.OpWait, 1).N)
		_ = one.Close()
		_ = two.Close()
		testcluster.Eventually(t, testTimeout, func() bool { return strings.Count(s.String(), "connection ended") == 2*(run+1) }, "both have ended")
		_, err := s.Delete(s.ctx, "ready/1", "ready/2")
		require.NoError(t, err)
	}
}

func TestCheckOfAProtocol(t *testing.T) {
	for says, p := range map[string]*tcpstore.Protocol{
		`the TTL of "a" is 0s`:                   {TTL: []tcpstore.Rule{{Prefix: "a"}}},
		`the pattern "a" is to have {rank} once`: {Ranks: []string{"a"}},
		`the pattern "{rank}{rank}"`:             {Ranks: []string{"{rank}{rank}"}},
		`the pattern "*/{rank}"`:                 {Ranks: []string{"*/{rank}"}},
	} {
		require.ErrorContains(t, p.Check(), says)
		s := serve(t, p, nil)
		c := s.raw(t)
		c.send(of(tcpwire.OpValidate))
		c.closed()
		s.Says(t, "tcpstore: ")
	}
	require.NoError(t, (&tcpstore.Protocol{Ranks: []string{"a/{rank}/*"}}).Check())
}

// TestAddToText checks that add reads a value as PyTorch's server does, by std::stoll, and wraps around
// as it does, and that the end of a connection is logged with its reason: PyTorch's protocol has no error reply.
func TestAddToText(t *testing.T) {
	s := current(t)
	c := s.client(t)
	for value, sum := range map[string]int64{
		"5x": 7, " \t-5 x": -3, "+7,5": 9, "0x10": 2, "12": 14, "9223372036854775807": math.MinInt64 + 1, "9223372036854775806x": math.MinInt64,
	} {
		c.send(set("/n", value))
		require.Equal(t, sum, c.call(add("/n", 2)).N, value)
		got, err := s.Get(s.ctx, "n")
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(sum, 10), string(got), "the text is gone")
	}
	for _, value := range []string{"x", "", "- 5", "9223372036854775808"} {
		s.Reset()
		c := s.client(t)
		c.send(set("/n", value), add("/n", 2))
		c.closed()
		s.Says(t, "level=WARN msg=\"connection ended\" peer="+c.LocalAddr().String())
	}

	s.Reset()
	c = s.client(t)
	half := strings.Repeat("x", 9<<20)
	c.send(set("/n", half), tcpwire.Request{Op: tcpwire.OpAppend, Key: "/n", Value: []byte(half)})
	c.closed()
	s.Says(t, "too large")
}
