package timeline_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/trace/timeline"
)

// traces writes the traces of two ranks in one barrier, to which rank 1 comes 40 ms later.
func traces(dir string) {
	start := time.Now()
	for rank := range 2 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("rank%d.json", rank)))
		if err != nil {
			fmt.Println(err)
			return
		}
		c := trace.Chrome(f)
		late := time.Duration(rank) * 40 * time.Millisecond
		c.Record(context.Background(), trace.Event{
			Op: "pgroup.barrier", Group: "world", ID: 1, Seq: 1, Rank: rank, Size: 2, Last: 1, Start: start.Add(late), End: start.Add(41 * time.Millisecond),
		})
		_, _ = c.Close(), f.Close()
	}
}

// example returns the timeline of traces.
func example() *timeline.Timeline {
	dir, err := os.MkdirTemp("", "muster-timeline-")
	if err != nil {
		fmt.Println(err)
		return nil
	}
	defer os.RemoveAll(dir)
	traces(dir)
	files, err := timeline.ReadDir(dir)
	if err != nil {
		fmt.Println(err)
		return nil
	}
	t, err := timeline.Merge(files...)
	if err != nil {
		fmt.Println(err)
	}
	return t
}

func ExampleMerge() {
	for _, r := range example().Rows {
		fmt.Println("rank", r.Rank, "waited", r.Events[0].Wait.Round(10*time.Millisecond))
	}
	// Output:
	// rank 0 waited 40ms
	// rank 1 waited 0s
}

func ExampleTimeline_Summary() {
	worst := example().Summary().Ranks[0]
	fmt.Println("rank", worst.Row.Rank, "came last", worst.Last, "times; the others waited", worst.Caused.Round(10*time.Millisecond))
	// Output: rank 1 came last 1 times; the others waited 40ms
}

func ExampleTimeline_SVG() {
	var picture bytes.Buffer
	fmt.Println(example().SVG(&picture, &timeline.PictureOptions{Title: "a barrier"}), strings.HasPrefix(picture.String(), "<svg"))
	// Output: <nil> true
}

func ExampleTimeline_HTML() {
	var page bytes.Buffer
	fmt.Println(example().HTML(&page, nil), strings.Contains(page.String(), "barrier #1 of world"))
	// Output: <nil> true
}

func ExampleTimeline_Chrome() {
	var merged bytes.Buffer // for ui.perfetto.dev
	fmt.Println(example().Chrome(&merged), strings.Count(merged.String(), `"name":"barrier"`))
	// Output: <nil> 2
}

func ExampleReadFile() {
	dir, err := os.MkdirTemp("", "muster-timeline-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	traces(dir)
	f, err := timeline.ReadFile(filepath.Join(dir, "rank1.json"))
	fmt.Println(err, f.Events[0].Op, f.Truncated)
	// Output: <nil> pgroup.barrier false
}

func ExampleRead() {
	var file bytes.Buffer
	c := trace.Chrome(&file)
	_ = c.Flush() // never closed: its process was killed
	f, err := timeline.Read("rank0.json", &file)
	fmt.Println(err, f.Truncated)
	// Output: <nil> true
}

func ExampleReadDir() {
	_, err := timeline.ReadDir("/no/such/directory")
	fmt.Println(err)
	// Output: timeline: /no/such/directory is no directory
}

func ExampleJobs() {
	a := &timeline.File{Name: "of one job", Events: []trace.Event{{ID: 1}}}
	b := &timeline.File{Name: "of a later one", Start: time.Unix(1, 0), Events: []trace.Event{{ID: 2}}}
	fmt.Println(timeline.Jobs([]*timeline.File{a, b})[0][0].Name)
	// Output: of a later one
}

func ExampleRecord_String() {
	fmt.Println(example().Records[0])
	// Output: barrier #1 of world
}
