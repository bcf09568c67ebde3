package status

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/store"
)

//go:embed page
var files embed.FS

const (
	every     = time.Second // between two updates of an open page
	mostPages = 64          // pages open at once
	writeTime = 10 * time.Second
)

// Handler is what the public package documents. It uses only the fields Address and Version of o.
func Handler(s *store.Store, o Options) http.Handler {
	o.Ranks, o.Groups, o.Waits, o.Failures = 256, 100, 60, 50
	h := &handler{watch: NewWatch(store.ReadOnly(s), every*9/10, o)}
	static, _ := fs.Sub(files, "page") // cannot fail: the directory is embedded
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(static))
	mux.HandleFunc("GET /status", h.once)
	mux.HandleFunc("GET /events", h.events)
	return guarded(mux)
}

type handler struct {
	watch *Watch
	open  atomic.Int32 // open pages
}

// guarded sets headers that isolate the page: it loads nothing from other origins, cannot be
// framed, and is not cached.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// once serves a view as JSON, for programs.
func (h *handler) once(w http.ResponseWriter, r *http.Request) {
	v, _, err := h.watch.Look(r.Context())
	switch {
	case err == nil:
		write(w, http.StatusOK, v)
	case errors.Is(err, store.ErrDenied):
		write(w, http.StatusForbidden, map[string]string{"error": err.Error()})
	default:
		write(w, http.StatusBadGateway, map[string]string{"error": err.Error()})
	}
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // an error means that the peer has disconnected
}

// events sends a view to a page whenever it changes, until the page is closed.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	if h.open.Add(1) > mostPages {
		h.open.Add(-1)
		w.Header().Set("Retry-After", "10")
		write(w, http.StatusServiceUnavailable, map[string]string{"error": fmt.Sprintf("status: %d pages are open already", mostPages)})
		return
	}
	defer h.open.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := (*View)(nil); ; {
		v, _, err := h.watch.Look(r.Context())
		if v == nil || v != last {
			if out.SetWriteDeadline(time.Now().Add(writeTime)) != nil {
				return
			}
			e := event("status", v)
			if err != nil {
				e = event("away", err.Error())
			}
			if _, err := w.Write(e); err != nil || out.Flush() != nil {
				return
			}
		}
		last = v
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

func event(name string, data any) []byte {
	b, _ := json.Marshal(data) // cannot fail: JSON has all values of a view
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, b)
}
