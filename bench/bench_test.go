package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if isChild() { // the benchmarks start this binary again as a child
		os.Exit(runChild())
	}
	os.Exit(m.Run())
}

// smoke runs a benchmark with counts so small that it measures nothing, and requires a row for each
// name.
func smoke(t *testing.T, rows []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs strings.Builder
	if status := run(ctx, args, &out, &errs); status != 0 {
		t.Fatalf("bench %v: status %d: %s", args, status, errs.String())
	}
	for _, row := range rows {
		if !strings.Contains(out.String(), row) {
			t.Errorf("bench %v: no %q in:\n%s", args, row, out.String())
		}
	}
}

func TestKV(t *testing.T) {
	args := []string{"kv", "-rounds", "1", "-slice", "10ms", "-shapes", "1x1,2x4"}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Log("NO REDIS: redis-server is not installed, muster is measured beside the bare server alone")
		args = append(args, "-redis=false")
	}
	smoke(t, []string{"muster", "bare", "2×4"}, args...)
}

func TestTTL(t *testing.T) {
	args := []string{"ttl", "-n", "300", "-rounds", "2", "-slice", "5ms", "-shapes", "2x4"}
	rows := []string{"ttl: memory", "ttl: rate", "muster+TTL", "set TTL  2×4  muster+TTL, all"}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Log("NO REDIS: redis-server is not installed, muster is measured alone")
		args = append(args, "-redis=false")
	} else {
		rows = append(rows, "redis+TTL")
	}
	smoke(t, rows, args...)
}

func TestGroups(t *testing.T) {
	smoke(t, []string{"barrier", "all-gather", "muster", "bare"}, "groups", "-n", "2", "-rounds", "1", "-slice", "10ms")
}

func TestRanks(t *testing.T) {
	var rows []string
	for _, way := range []string{"direct", "relays"} {
		for _, verb := range append([]string{"connect", "join"}, ranksVerbs...) {
			for _, n := range []string{"12", "100", "growth"} {
				rows = append(rows, way+"  "+n+" *"+verb+" ")
			}
		}
	}
	var out, errs strings.Builder
	args := []string{"ranks", "-n", "12,100", "-each", "60", "-rounds", "3"}
	if status := run(t.Context(), args, &out, &errs); status != 0 {
		t.Fatalf("bench %v: status %d: %s", args, status, errs.String())
	}
	for _, row := range rows {
		if !regexp.MustCompile("(?m)^" + row).MatchString(out.String()) {
			t.Errorf("no %q in:\n%s", row, out.String())
		}
	}
}

// TestRanksGrow checks, in the JSON output of the ranks benchmark, that the traffic of each rank
// has the expected size, and that no connection was reset in a burst.
func TestRanksGrow(t *testing.T) {
	var out, errs strings.Builder
	if status := run(t.Context(), []string{"ranks", "-n", "30,100", "-rounds", "2", "-json"}, &out, &errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	var rep report
	if err := json.Unmarshal([]byte(out.String()), &rep); err != nil {
		t.Fatal(err)
	}
	figures := map[string]map[string]float64{}
	for _, r := range rep.Rows {
		figures[strings.Join(r.Name, " ")] = r.Figures
		if r.Figures["broken"] != 0 {
			t.Errorf("%v: %v connections were broken", r.Name, r.Figures["broken"])
		}
	}
	if runtime.GOOS != "linux" {
		return // no count of the bytes that connections have carried
	}
	const from, to = "from store B/rank", "to store B/rank"
	for _, c := range []struct {
		row, figure string
		least, most float64
	}{
		{"direct 100 all-gather 64 B", from, 6400, 8000},
		// one for each host, or two if a vote is late
		{"relays 100 all-gather 64 B", from, 6400. / 8, 8000. / 8 * 1.5},
		{"direct 100 broadcast 1 KiB", from, 1024, 1200},
		{"relays 100 barrier", to, 32, 82},
		{"direct growth barrier", to, 0.95, 1.05},
		{"direct growth all-gather 64 B", from, 1.9, 2.1},
	} {
		if v := figures[c.row][c.figure]; v < c.least || v > c.most {
			t.Errorf("%s: %s is %v, and not from %v to %v", c.row, c.figure, v, c.least, c.most)
		}
	}
}

func TestExponent(t *testing.T) {
	ns := []float64{100, 1000, 10000}
	for want, vs := range map[float64][]float64{0: {7, 7, 7}, 1: {3, 30, 300}, 2: {1, 100, 10000}, 0.5: {10, math.Sqrt(1000), 100}} {
		if x, ok := exponent(ns, vs); !ok || math.Abs(x-want) > 1e-9 {
			t.Errorf("%v: %v, and not %v", vs, x, want)
		}
	}
	if _, ok := exponent(ns, []float64{1, 0, 1}); ok {
		t.Error("nothing grows")
	}
	if _, ok := exponent([]float64{5}, []float64{1}); ok {
		t.Error("one is no growth")
	}
}

func TestWrongUse(t *testing.T) {
	for _, line := range []string{
		"", "nothing", "kv -nothing", "kv -ops take", "ttl -part nothing", "ttl -shapes 1", "groups -n 1", "files -kib 0",
		"gather -n 1", "gather -kib 0", "gather -rounds 0", "gather -ways (", "gather -ways nothing -mpi=false -python true",
		"ranks -n x", "ranks -n 0", "ranks -each 0", "ranks -host 0 -direct=false", "ranks -n 99999999",
		"collective -n 1", "collective -bytes 5", "collective -bytes x", "collective -verbs x", "collective -rounds 0",
		"collective -ways (", "collective -ways nothing -mpi=false",
	} {
		var out, errs strings.Builder
		if run(t.Context(), strings.Fields(line), &out, &errs) == 0 {
			t.Errorf("%s: no error", line)
		}
	}
}

// TestTrafficOfClosedConnections checks that the traffic of connections does not decrease when one
// of them is closed.
func TestTrafficOfClosedConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var w wires
	for n := range uint64(2) {
		c, err := w.dial(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		_, err = peer.Write([]byte("hello"))
		if _, e := io.ReadFull(c, make([]byte, 5)); err != nil || e != nil {
			t.Fatal(err, e)
		}
		before := w.traffic()
		if runtime.GOOS == "linux" && before.in != 5*(n+1) {
			t.Errorf("%d bytes received over %d connections", before.in, n+1)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if after := w.traffic(); after.in != before.in {
			t.Errorf("%d bytes before a connection is closed, and %d after", before.in, after.in)
		}
	}
}

func TestSteps(t *testing.T) {
	smoke(t, []string{"1 KiB", "muster", "NO VLLM"}, "steps", "-n", "2", "-size", "1024", "-rounds", "1", "-python", "false")
}
