package status_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// counted counts the requests to a store.
type counted struct {
	store.Engine
	asked atomic.Int64 // requests for the status
	fails atomic.Bool
}

func (c *counted) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.Op == wire.OpStatus {
		c.asked.Add(1)
		if c.fails.Load() {
			return store.ErrUnavailable
		}
	}
	return c.Engine.Do(ctx, req, rep)
}

// page serves the page of a new store.
func page(t *testing.T) (s *store.Store, c *counted, url string) {
	c = &counted{Engine: new(store.Memory)}
	s = store.New(c)
	srv := httptest.NewServer(status.Handler(s, status.Options{}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		srv.CloseClientConnections()
		srv.Close()
		_ = s.Close()
	})
	return s, c, srv.URL
}

// get returns the answer at a URL.
func get(t *testing.T, url string) (code int, body string, head http.Header) {
	t.Helper()
	rep, err := http.Get(url)
	require.NoError(t, err)
	defer rep.Body.Close()
	b, err := io.ReadAll(rep.Body)
	require.NoError(t, err)
	return rep.StatusCode, string(b), rep.Header
}

// TestPage checks that the page serves its own files and nothing else, that it loads nothing from
// other origins, and that it rejects requests that could change something.
func TestPage(t *testing.T) {
	_, _, url := page(t)
	for path, want := range map[string]string{"/": "<!doctype html>", "/style.css": "prefers-color-scheme", "/script.js": "EventSource", "/icon.svg": "<svg", "/status": `"waiting":[]`} {
		code, body, head := get(t, url+path)
		require.Equal(t, 200, code, path)
		require.Contains(t, body, want)
		require.Contains(t, head.Get("Content-Security-Policy"), "default-src 'none'")
		require.Equal(t, "no-store", head.Get("Cache-Control"))
		require.NotRegexp(t, `https?://[a-z]`, strings.ReplaceAll(body, "http://www.w3.org/2000/svg", ""), "a link to elsewhere in %s", path)
	}
	code, _, _ := get(t, url+"/nothing")
	require.Equal(t, 404, code)
	rep, err := http.Post(url+"/status", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	require.NoError(t, rep.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, rep.StatusCode)
}

// TestEvents checks that a page gets an event at once and then regularly, and that several pages
// share the requests to the store.
func TestEvents(t *testing.T) {
	t.Parallel() // an event a second
	s, c, url := page(t)
	go func() { _, _ = s.Wait(context.Background(), "model/ready") }()
	require.Eventually(t, func() bool {
		_, body, _ := get(t, url+"/status")
		return strings.Contains(body, "key model/ready")
	}, 30*time.Second, 10*time.Millisecond)
	var pages []*bufio.Reader
	ctx, cancel := context.WithCancel(t.Context())
	for range 5 {
		_, head, events := watch(ctx, t, url)
		require.Equal(t, "text/event-stream", head.Get("Content-Type"))
		pages = append(pages, events)
	}
	before := c.asked.Load()
	for _, p := range pages {
		for range 2 {
			name, v := event(t, p)
			require.Equal(t, "status", name)
			require.Contains(t, v, `"what":"key model/ready"`)
		}
	}
	require.LessOrEqual(t, c.asked.Load()-before, int64(4), "five pages, two events each")
	c.fails.Store(true)
	for name := ""; name != "away"; {
		name, _ = event(t, pages[0])
	}
	cancel()
	require.NoError(t, s.Set(t.Context(), "model/ready", nil, nil))
}

// watch opens the stream of events of a page, until ctx ends.
func watch(ctx context.Context, t *testing.T, url string) (code int, head http.Header, events *bufio.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events", nil)
	require.NoError(t, err)
	rep, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rep.Body.Close() })
	return rep.StatusCode, rep.Header, bufio.NewReader(rep.Body)
}

// event reads an event.
func event(t *testing.T, r *bufio.Reader) (name, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "event":
			name = value
		case "data":
			data = value
		case "":
			return name, data
		}
	}
}

// TestStoreThatIsAway checks that an unavailable store causes an error with the reason.
func TestStoreThatIsAway(t *testing.T) {
	_, c, url := page(t)
	c.fails.Store(true)
	code, body, _ := get(t, url+"/status")
	require.Equal(t, http.StatusBadGateway, code)
	require.Contains(t, body, "unavailable")
}

func TestTooManyPages(t *testing.T) {
	_, _, url := page(t)
	for range 64 {
		code, _, _ := watch(t.Context(), t, url)
		require.Equal(t, http.StatusOK, code)
	}
	code, head, _ := watch(t.Context(), t, url)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotEmpty(t, head.Get("Retry-After"))
}
