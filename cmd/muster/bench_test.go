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

func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	for args, stderr := range map[string]string{
		"-n 0": "2 to 1024", "-n 2,1": "2 to 1024", "-n x": "is not a list of whole numbers", "--cases walk": "barrier, all-gather", "--size 17MiB": "16MiB",
		"-n 2,3,2": "2 is there twice", "--cases=": "--cases is empty",
		"--size -1": "not a size", "--time 0s": "positive", "--host me": "rank0 or launcher", "more": "unexpected argument",
		"--size 1KiB,": "not a size", "--size 4,4": "4 is there twice",
	} {
		run(t, append([]string{"bench"}, strings.Fields(args)...)...).wants(t, 2, "", stderr)
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
