package trace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/trace"
)

// barrier is a verb that reports its event to sink.
func barrier(ctx context.Context, sink trace.Sink) (err error) {
	start := trace.Now(sink)
	defer func() {
		trace.Record(ctx, sink, trace.Event{Op: "pgroup.barrier", Group: "world", Rank: 1, Size: 4, Last: -1, Start: start, Err: err})
	}()
	return ctx.Err()
}

func ExampleRecord() {
	var seen trace.Counter
	_ = barrier(context.Background(), &seen)
	_ = barrier(context.Background(), nil) // without a sink
	fmt.Println(seen.Total("pgroup.barrier").Count)
	// Output: 1
}

func ExampleNow() {
	fmt.Println(trace.Now(nil).IsZero(), trace.Now(&trace.Counter{}).IsZero())
	// Output: true false
}

func ExampleMulti() {
	counts, last := &trace.Counter{}, &trace.Counter{Keep: 1}
	_ = barrier(context.Background(), trace.Multi(counts, nil, last))
	fmt.Println(counts.Total("pgroup.barrier").Count, last.Events()[0].Group)
	// Output: 1 world
}

func ExampleCounter() {
	m := trace.Counter{Keep: 100}
	start := time.Now()
	for i := range 4 {
		e := trace.Event{Op: "collective.allreduce", Rank: i, Size: 4, Bytes: 1 << 20, Start: start, End: start.Add(250 * time.Millisecond)}
		if i == 3 {
			e.Err = errors.New("lost rank 2")
		}
		m.Record(context.Background(), e)
	}
	sum := m.Total("collective.allreduce")
	fmt.Println(sum.Count, "in", sum.Time, "and", sum.Failed, "failed:", m.Events()[3].Err)
	// Output: 4 in 1s and 1 failed: lost rank 2
}

func ExampleEvent_Duration() {
	e := trace.Event{Start: time.Unix(10, 0), End: time.Unix(12, 0)}
	fmt.Println(e.Duration())
	// Output: 2s
}

func ExampleChrome() {
	var file bytes.Buffer // or an os.File
	c := trace.Chrome(&file)
	_ = barrier(context.Background(), c)
	fmt.Println(c.Close())
	fmt.Println(strings.Count(file.String(), `"name":"barrier"`))
	// Output:
	// <nil>
	// 1
}
