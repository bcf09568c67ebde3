package main_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	muster "github.com/muster-pg/muster/cmd/muster"
)

func TestBenchTable(t *testing.T) {
	t.Parallel()
	r := run(t, "bench", "-n", "2,3", "--time", "5ms", "--size", "100")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"objects of 100,", "2 ranks ", "3 ranks ", "  barrier ", "  all-gather ", "  broadcast ", "  ping-pong ", "  set ", "  get "} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
}

func TestBenchJSON(t *testing.T) {
	t.Parallel()
	r := run(t, "bench", "-n", "2", "--time", "5ms", "--cases", "barrier,get", "--host", "launcher", "--json")
	var got struct {
		Results []struct {
			Case   string
			Ranks  int
			Size   int `json:"size_bytes"`
			Count  int
			Median float64 `json:"median_us"`
			P99    float64 `json:"p99_us"`
			Rate   float64 `json:"ops_per_s"`
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if len(got.Results) != 2 || got.Results[0].Size != 0 || got.Results[1].Size != 1024 || got.Results[0].Case != "barrier" || got.Results[1].Case != "get" {
		t.Fatalf("%+v", got)
	}
	for _, c := range got.Results {
		if c.Ranks != 2 || c.Count < 1 || c.Median <= 0 || c.P99 < c.Median || c.Rate <= 0 {
			t.Errorf("%+v", c)
		}
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 ns", 999: "999 ns", 1500: "1.50 µs", 45678: "45.7 µs", 456 * time.Microsecond: "456 µs", 12 * time.Millisecond: "12.0 ms", 3 * time.Second: "3.00 s",
	} {
		if got := muster.Short(d); got != want {
			t.Errorf("%d ns is %q, not %q", d, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "512": 512, "1KiB": 1 << 10, "3MiB": 3 << 20, "4GiB": 4 << 30} {
		var s muster.Size
		if err := s.Set(text); err != nil || int64(s) != want || s.String() != text {
			t.Errorf("%s is %d, %s, %v", text, s, &s, err)
		}
	}
	for _, text := range []string{"", "KiB", "1KB", "-1", "1.5MiB", "99999999999GiB", "1 KiB"} {
		if err := new(muster.Size).Set(text); err == nil {
			t.Errorf("%q is a size", text)
		}
	}
}
