package trace_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"

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

// printed is a sink that prints events.
type printed struct{}

func (printed) Record(_ context.Context, e trace.Event) {
	fmt.Println(e.Op, "of rank", e.Rank, "in", e.Group, e.Err)
}

func ExampleMulti() {
	var file bytes.Buffer // or an os.File
	chrome := trace.Chrome(&file)
	_ = barrier(context.Background(), trace.Multi(chrome, printed{}))
	_ = barrier(context.Background(), nil) // without a sink
	fmt.Println(chrome.Close())
	// Output:
	// pgroup.barrier of rank 1 in world <nil>
	// <nil>
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
