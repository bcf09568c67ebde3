package browser_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// limit is the timeout of a test on a busy machine.
const limit = 2 * time.Minute

// device is a kind of screen.
type device struct {
	name          string
	width, height int64
	phone, dark   bool
}

var devices = []device{
	{"desktop-light", 1280, 900, false, false},
	{"desktop-dark", 1280, 900, false, true},
	{"phone-light", 390, 844, true, false},
	{"phone-dark", 390, 844, true, true},
}

// endChromium ends the browser.
var endChromium = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	endChromium()
	os.Exit(code)
}

// chromium starts the browser of all tests; each test has its own tabs. There is none if it returns nil.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path := os.Getenv("MUSTER_CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); path == "" && err == nil {
			path = found
		}
	}
	if path == "" {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "muster-browser")
	if err != nil {
		return nil, err
	}
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(dir),
		chromedp.Flag("disable-dev-shm-usage", true))
	allocator, closes := chromedp.NewExecAllocator(context.Background(), o...)
	endChromium = func() { closes(); _ = os.RemoveAll(dir) }
	ctx, _ := chromedp.NewContext(allocator)
	return ctx, chromedp.Do(ctx) // starts it
})

// browser opens a tab with the screen of d; it is closed with the test.
func browser(t *testing.T, d device) context.Context {
	t.Helper()
	ctx, err := chromium()
	require.NoError(t, err)
	if ctx == nil {
		t.Skip("SKIPPED: there is no chromium (Debian's package chromium, or MUSTER_CHROMIUM): the page is not tested in a browser")
	}
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, limit)
	t.Cleanup(cancel)
	scheme := map[bool]string{false: "light", true: "dark"}[d.dark]
	view := []chromedp.EmulateViewportOption{chromedp.EmulateScale(1)}
	if d.phone {
		view = []chromedp.EmulateViewportOption{chromedp.EmulateScale(2), chromedp.EmulateMobile, chromedp.EmulateTouch}
	}
	run(t, ctx, chromedp.EmulateViewport(d.width, d.height, view...))
	_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(t, err)
	return ctx
}

// job is a group in a store that a page shows.
type job struct {
	t   *testing.T
	m   *store.Memory
	url string
	gen uint64
	wg  sync.WaitGroup
}

// page serves the page of a store until the end of the test, and returns its URL.
func page(t *testing.T, e store.Engine, o status.Options) string {
	s := httptest.NewServer(status.Handler(store.New(e), o))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

func newJob(t *testing.T, name string, size int) *job {
	j := &job{t: t, m: new(store.Memory)}
	t.Cleanup(j.wg.Wait)
	j.url = page(t, j.m, status.Options{Address: "muster://store:7070", Version: "muster v1"})
	t.Cleanup(func() { _ = j.m.Close() })
	j.gen = j.join(name, 4100, size, size)
	return j
}

// join lets n ranks of a group with the given size join, with process ids from pid on. If these are
// all ranks, it returns the generation.
func (j *job) join(name string, pid, n, size int) (gen uint64) {
	var joined sync.WaitGroup
	for rank := range n {
		joined.Add(1)
		j.wg.Go(func() {
			defer joined.Done()
			c := wire.Contribution{Group: name, Run: "run-1", Rank: rank, Size: size, Label: fmt.Sprintf("pid %d on node-%c", pid+rank, 'a'+rank/4)}
			membership, err := store.New(j.m).Join(context.Background(), c, nil)
			if err == nil && rank == 0 {
				gen = membership.Generation
			}
		})
	}
	if n == size {
		joined.Wait()
	}
	return gen
}

// barrier lets ranks call barrier number seq, until ctx ends.
func (j *job) barrier(ctx context.Context, seq uint64, ranks ...int) *sync.WaitGroup {
	var called sync.WaitGroup
	for _, rank := range ranks {
		called.Add(1)
		j.wg.Go(func() {
			defer called.Done()
			c := wire.Contribution{Generation: j.gen, Rank: rank, Seq: seq, Verb: "barrier", Root: -1, Want: wire.WantNothing}
			_, _ = store.New(j.m).Collect(ctx, c, nil)
		})
	}
	return &called
}

// stuck returns a job whose rank 2 does not call a barrier; an earlier barrier has failed.
func stuck(t *testing.T) *job {
	j := newJob(t, "train", 8)
	j.barrier(context.Background(), 1, 0, 1, 2, 3, 4, 5, 6, 7).Wait()
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	j.barrier(short, 2, 0, 1, 3).Wait()
	j.barrier(context.Background(), 3, 0, 1, 3, 4, 5, 6, 7)
	require.Eventually(t, func() bool { // so that the calls that follow wait for a shorter time
		s, err := store.New(j.m).Status(t.Context(), "")
		return err == nil && len(s.Groups[0].Records) == 1 && s.Groups[0].Records[0].Age > 10*time.Millisecond
	}, limit, 10*time.Millisecond)
	j.wg.Go(func() { _, _ = store.New(j.m).Wait(context.Background(), "model/<b>ready</b>") })
	j.join("evaluate", 5100, 3, 4)
	return j
}

// run executes actions.
func run(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	require.NoError(t, chromedp.Do(ctx, actions...))
}

// value returns the value of a script.
func value[T any](t *testing.T, ctx context.Context, script string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	require.NoError(t, err)
	return v
}

// until waits until a script returns true.
func until(t *testing.T, ctx context.Context, script string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !value[bool](t, ctx, script) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", script)
		}
	}
}

// has waits until the element of selector contains all texts.
func has(t *testing.T, ctx context.Context, selector string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		until(t, ctx, fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.innerText.replaceAll("\u00a0", " ").includes(%q))`, selector, text))
	}
}

// press presses keys.
func press(t *testing.T, ctx context.Context, keys ...string) {
	t.Helper()
	for _, k := range keys {
		run(t, ctx, chromedp.KeyEvent(k))
	}
}

// shortcut presses a key as a keyboard does: the page's handler runs before the key would insert a
// character.
func shortcut(t *testing.T, ctx context.Context, key string) {
	t.Helper()
	for _, typ := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		p := input.DispatchKeyEventParams{Type: typ, Key: key}
		if typ == input.DispatchKeyEventTypeKeyDown {
			p.Text = key
		}
		_, err := chromedp.Call(ctx, input.DispatchKeyEvent, p)
		require.NoError(t, err)
	}
}

// open opens the page of j, and waits until it shows the barrier.
func open(t *testing.T, ctx context.Context, j *job) {
	t.Helper()
	run(t, ctx, chromedp.Navigate(j.url))
	has(t, ctx, "#summary", "barrier #3")
}

// TestStuckBarrierIsSeenAtOnce checks that every screen shows, above everything else and without
// scrolling, the group, the verb, for how long it has waited, and which rank is missing.
func TestStuckBarrierIsSeenAtOnce(t *testing.T) {
	j := stuck(t)
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			ctx := browser(t, d)
			open(t, ctx, j)
			// Both jobs that hang.
			has(t, ctx, "#summary", "train · barrier #3 waits: ", "for rank 2", "pid 4102 on node-a", "evaluate · create waits: ")
			has(t, ctx, "#about", "muster://store:7070 · muster v1")
			require.True(t, value[bool](t, ctx, `(() => { const r = document.querySelector("#summary").getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight })()`), "it is on the first screen")
			has(t, ctx, "#waits", "7 of 8 have joined, 1 missing", "evaluate · create", "has not joined", "key model/<b>ready</b>") // as text
			has(t, ctx, "#waits .who", "rank 2 pid 4102 on node-a · in no call; its last at the store was barrier #1")
			has(t, ctx, "#failures", "train · barrier #2: timed out")
			require.Equal(t, []int{8, 1}, value[[]int](t, ctx, `(() => { const r = document.querySelector("#waits li .ranks"); return [r.children.length, r.querySelectorAll(".missing").length] })()`))
			require.False(t, value[bool](t, ctx, `document.documentElement.scrollWidth > innerWidth`), "something sticks out to the right")
			require.Empty(t, value[[]string](t, ctx, `performance.getEntriesByType("resource").map((e) => new URL(e.name).origin).filter((o) => o !== location.origin)`), "it loads nothing from elsewhere")
			until(t, ctx, `/slow|stuck/.test(document.querySelector("#summary").className) && /^[…✗] muster$/.test(document.title)`)
		})
	}
}

// contrast is a script that returns the texts whose contrast with their background is below 4.5 :
// 1, the minimum in WCAG.
const contrast = `(() => {
	const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).map((x) => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
	const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$/.test(c)) return c } return "rgb(255, 255, 255)" };
	const bad = [], summary = document.querySelector("#summary");
	for (const grade of ["calm", "slow", "stuck"]) { // whatever it is at the moment
		summary.className = "summary " + grade;
		for (const e of document.querySelectorAll("main *, header *, footer *")) {
			if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.offsetParent) continue;
			const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
			if ((a + .05) / (b + .05) < 4.5) bad.push(e.tagName + "." + e.className + " " + ((a + .05) / (b + .05)).toFixed(2));
		}
	}
	return bad.join("; ");
})()`

// TestColours checks that the dark mode is dark, and that text is readable in both modes.
func TestColours(t *testing.T) {
	j := stuck(t)
	for _, d := range devices[:2] {
		t.Run(d.name, func(t *testing.T) {
			ctx := browser(t, d)
			open(t, ctx, j)
			run(t, ctx, chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details").forEach((d) => d.open = true)`))
			has(t, ctx, "#groups td", "rank 7")
			require.Empty(t, value[string](t, ctx, contrast), "text that is hard to read")
			ground := value[string](t, ctx, `getComputedStyle(document.body).backgroundColor`)
			require.Equal(t, d.dark, strings.HasPrefix(ground, "rgb(17,"), ground)
		})
	}
}

// TestPageIsLive checks that changes appear without a reload, and that open elements and the focus
// stay.
func TestPageIsLive(t *testing.T) {
	j := stuck(t)
	ctx := browser(t, devices[0])
	open(t, ctx, j)
	run(t, ctx, chromedp.Focus("#groups details:last-of-type summary"))
	press(t, ctx, kb.Enter)
	has(t, ctx, "#groups td", "pid 4102 on node-a")
	has(t, ctx, "#groups tr.awaited", "rank 2")
	j.barrier(context.Background(), 3, 2)
	has(t, ctx, "#summary", "evaluate · create")
	j.barrier(context.Background(), 4, 2)
	has(t, ctx, "#waits", "train · barrier #4", "1 of 8 have joined")
	require.Equal(t, "SUMMARY", value[string](t, ctx, `document.activeElement.tagName`))
	require.True(t, value[bool](t, ctx, `document.querySelector("#groups details:last-of-type").open`))
	require.NoError(t, j.m.Close())
	has(t, ctx, "#line.away", "does not answer")
}

// TestKeyboard uses the whole page without a mouse.
func TestKeyboard(t *testing.T) {
	j := stuck(t)
	ctx := browser(t, devices[0])
	open(t, ctx, j)
	focus := func() string {
		return value[string](t, ctx, `document.activeElement.id || document.activeElement.tagName`)
	}
	shortcut(t, ctx, "w")
	require.Equal(t, "waiting", focus())
	press(t, ctx, kb.Tab)
	require.Equal(t, "SUMMARY", focus())
	press(t, ctx, kb.Enter)
	has(t, ctx, "#groups details[open] summary", "evaluate")
}

// TestManyRanks checks that a page of a group of 10,000 ranks stays responsive.
func TestManyRanks(t *testing.T) {
	j := newJob(t, "large", 10_000)
	ctx := browser(t, devices[0])
	j.barrier(context.Background(), 1, 7)
	run(t, ctx, chromedp.Navigate(j.url))
	has(t, ctx, "#waits", "1 of 10000 have joined, 9999 missing")
	run(t, ctx, chromedp.Click("#groups summary"))
	has(t, ctx, "#groups td", "pid 4106")
	has(t, ctx, "#groups .more", "and 9744 more: muster who --ranks prints all")
	until(t, ctx, `(() => {
		const all = [...document.querySelectorAll("#waits .ranks i")].map((i) => i.title)
		return all[0] === "ranks 0–39: 1 have joined, 39 missing, 0 gone" && all.at(-1) === "ranks 9960–9999: 0 have joined, 40 missing, 0 gone"
	})()`)
}

// TestHeadline checks that the headline names the blamed rank of each job that hangs, and none of
// the ranks that wait for it.
func TestHeadline(t *testing.T) {
	j := newJob(t, "ready", 1)
	for _, name := range []string{"train", "tune", "serve"} {
		j.gen = j.join(name, 5100, 4, 4)
		j.barrier(context.Background(), 1, 0, 3)
		j.wg.Go(func() {
			c := wire.Contribution{Generation: j.gen, Rank: 1, Root: 2, Seq: 1, Verb: "recv"}
			_, _, _ = store.New(j.m).Recv(context.Background(), c)
		})
	}
	ctx := browser(t, devices[0])
	run(t, ctx, chromedp.Navigate(j.url))
	for _, name := range []string{"train", "tune", "serve"} {
		until(t, ctx, fmt.Sprintf(`document.querySelector("#waits").innerText.replaceAll("\u00a0", " ").includes("%s · rank 1: recv from rank 2")`, name))
		until(t, ctx, fmt.Sprintf(`/^%s · barrier #1 waits: .*, for rank 2$/m.test(document.querySelector("#summary").innerText.replaceAll("\u00a0", " "))`, name))
	}
	has(t, ctx, "#groups", "idle")
	require.NotContains(t, value[string](t, ctx, `document.querySelector("#groups").innerText`), "at work")
}

// TestPhases checks that the page shows how far each rank is, and names one that has stalled although no
// rank waits for it.
func TestPhases(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			j := newJob(t, "train", 3)
			for rank, f := range []wire.Phase{
				{ID: 1, Name: "loading <b>shards</b>", Done: 12, Total: 48, Stall: time.Hour}, {ID: 1, Name: "compiling", Stall: 1},
			} {
				require.NoError(t, store.New(j.m).Progress(t.Context(), wire.Contribution{Generation: j.gen, Rank: rank}, f))
			}
			ctx := browser(t, d)
			run(t, ctx, chromedp.Navigate(j.url))
			has(t, ctx, "#summary", "train: rank 1 (pid 4101 on node-a) has made no progress for ")
			has(t, ctx, "#groups summary", "loading <b>shards</b>: 1 rank, 12 of 48", "compiling: 1 rank")
			run(t, ctx, chromedp.Click("#groups summary"))
			has(t, ctx, "#groups tr.idle", "loading <b>shards</b>, 12 of 48 (25%), ")
			has(t, ctx, "#groups tr.stalled", "no progress for ")
			require.Equal(t, []float64{12, 48}, value[[]float64](t, ctx, `[...document.querySelectorAll("#groups progress")].flatMap((e) => [e.value, e.max])`))
			require.False(t, value[bool](t, ctx, `document.documentElement.scrollWidth > innerWidth`), "something sticks out to the right")
			require.Empty(t, value[string](t, ctx, contrast), "text that is hard to read")
		})
	}
}

// vague is a store that reports neither times nor its activity.
type vague struct{ store.Engine }

func (v vague) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	err := v.Engine.Do(ctx, req, rep)
	var s store.Status
	if req.Op != wire.OpStatus || err != nil || s.Parse(rep.Keys, rep.Value) != nil {
		return err
	}
	s.Server = &store.ServerStatus{Up: -1, Durable: true, SyncPending: 12 * time.Second, Keys: 7, Sessions: -1, Calls: -1, Bytes: -1}
	for i := range s.Groups {
		g := &s.Groups[i]
		g.Age, g.Records[0].Age = -1, -1
		for j := range g.Failures {
			g.Failures[j].Ago = -1
		}
	}
	rep.Keys, rep.Value = wire.AppendStatus(nil, nil, &s)
	return nil
}

// TestUnknownIsSaid checks that unknown values are not shown as 0.
func TestUnknownIsSaid(t *testing.T) {
	j := stuck(t)
	ctx := browser(t, devices[0])
	run(t, ctx, chromedp.Navigate(page(t, vague{j.m}, status.Options{})))
	has(t, ctx, "#waits", "train · barrier #3")
	has(t, ctx, "#waits .time", "unknown")
	has(t, ctx, "#numbers div", "persistent\nyes; the disk stalls: 12", "uptime\nunknown", "clients\nunknown", "data size\nunknown", "keys\n7")
	for _, id := range []string{"#waits", "#groups", "#numbers"} {
		require.NotRegexp(t, `-0?1|\b0\.0 s`, strings.ReplaceAll(value[string](t, ctx, fmt.Sprintf("document.querySelector(%q).innerText", id)), "run-1", ""), id)
	}
}

// replicated is a store that reports the given status of its replicas.
type replicated struct {
	store.Engine
	says *store.ReplicationStatus
	more bool // whether it reports more than that
}

func (r replicated) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.Op != wire.OpStatus {
		return r.Engine.Do(ctx, req, rep)
	}
	s := &store.Status{Replication: r.says}
	if r.more {
		s.Server = &store.ServerStatus{Keys: 7}
	}
	rep.Keys, rep.Value = wire.AppendStatus(nil, nil, s)
	return nil
}

// TestReplication checks that the page shows the leader and the lag of the standbys, and that the
// page of a standby shows no numbers of the store.
func TestReplication(t *testing.T) {
	says := &store.ReplicationStatus{Leader: "a:7070", Term: 3, LeadingFor: 90 * time.Second, Standbys: []store.StandbyStatus{{Addr: "b:7070", Lag: 2}, {Addr: "c:7070"}}}
	at := func(leads bool) context.Context {
		own := *says
		own.Leading = leads
		ctx := browser(t, devices[0])
		run(t, ctx, chromedp.Navigate(page(t, replicated{newJob(t, "train", 1).m, &own, leads}, status.Options{})))
		return ctx
	}
	ctx := at(true)
	has(t, ctx, "#replication div", "this process\nleads", "leader\na:7070, for 1 min 30 s", "term\n3", "standby b:7070\n2 log entries behind", "standby c:7070\nup to date")
	has(t, ctx, "#numbers div", "keys\n7")
	ctx = at(false)
	has(t, ctx, "#replication div", "this process\nis a standby")
	has(t, ctx, "#numbers div", "the leader's page shows the store")
}

// TestElasticJobs checks that the page shows the elastic jobs of the store, and no such part without any.
func TestElasticJobs(t *testing.T) {
	ctx := browser(t, devices[0])
	j := newJob(t, "train", 1)
	run(t, ctx, chromedp.Navigate(j.url), chromedp.WaitNotVisible("#elastic-part"))
	m, err := membership.Join(t.Context(), store.New(j.m), membership.Config{Job: "elastic", ID: "<b>a</b>", Min: 1})
	require.NoError(t, err)
	defer m.Close()
	run(t, ctx, chromedp.WaitVisible("#elastic li"))
	has(t, ctx, "#elastic b", "elastic")
	has(t, ctx, "#elastic span", "view 1 of size 1 · 1 change, 0.0 s without a view")
	has(t, ctx, "#elastic .note", " · view 1 of size 1: joined <b>a</b>")
}

// TestPageWaitsForRoom checks that one page too many reports that, and becomes live when another
// page is closed.
func TestPageWaitsForRoom(t *testing.T) {
	j := stuck(t)
	ctx := browser(t, devices[0])
	others, leave := context.WithCancel(t.Context())
	defer leave()
	for range 64 {
		req, err := http.NewRequestWithContext(others, http.MethodGet, j.url+"/events", nil)
		require.NoError(t, err)
		rep, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer rep.Body.Close()
	}
	run(t, ctx, chromedp.Navigate(j.url))
	has(t, ctx, "#linetext", "has too many viewers")
	leave()
	until(t, ctx, `$("linetext").textContent === "live"`)
}
