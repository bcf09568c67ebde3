package status

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"sync"
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

// Handler is what the public package documents. It uses only the fields Address, Version and Stacks of
// o, which may be nil.
func Handler(s *store.Store, o *Options) http.Handler {
	h := &handler{store: store.ReadOnly(s), source: s}
	page := Options{Ranks: 256, Groups: 100, Waits: 60, Failures: 50}
	if o != nil {
		page.Address, page.Version, page.Stacks = o.Address, o.Version, o.Stacks
	}
	h.watch = NewWatch(h.store, every*9/10, &page)
	static, _ := fs.Sub(files, "page") // cannot fail: the directory is embedded
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(static))
	mux.HandleFunc("GET /status", h.once)
	mux.HandleFunc("GET /events", h.events)
	mux.HandleFunc("GET /ranks", h.ranks)
	if page.Stacks {
		mux.HandleFunc("GET /stacks", h.stacks)
	}
	return guarded(mux)
}

type handler struct {
	store *store.Store
	// source is the store with all rights, for stacks, which are no right to read
	source *store.Store
	watch  *Watch
	open   atomic.Int32 // open pages

	mu    sync.Mutex // protects the fields below
	view  *View
	event []byte // view, encoded for all pages
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
	v, err := h.watch.View(r.Context())
	reply(w, v, err)
}

// ranks serves one generation with all of its ranks. An event includes only the first ones.
func (h *handler) ranks(w http.ResponseWriter, r *http.Request) {
	gen, err := strconv.ParseUint(r.FormValue("generation"), 10, 64)
	if err != nil {
		reply(w, nil, fmt.Errorf("%w: generation %q is no number", store.ErrInvalid, r.FormValue("generation")))
		return
	}
	_, now, err := h.watch.Look(r.Context())
	if err != nil {
		reply(w, nil, err)
		return
	}
	i := slices.IndexFunc(now.Groups, func(g store.GroupStatus) bool { return g.Generation == gen })
	if gen == 0 || i < 0 {
		reply(w, nil, fmt.Errorf("%w: generation %d", store.ErrNotFound, gen))
		return
	}
	reply(w, Of(&store.Status{Groups: now.Groups[i : i+1]}, nil).Groups[0], nil)
}

// stacks serves the stacks of a rank's process. Only a request with this header gets them, which
// pages of other sites cannot send.
func (h *handler) stacks(w http.ResponseWriter, r *http.Request) {
	gen, err := strconv.ParseUint(r.FormValue("generation"), 10, 64)
	rank, err2 := strconv.Atoi(r.FormValue("rank"))
	if err := cmp.Or(err, err2); err != nil || r.Header.Get("X-Muster") == "" {
		reply(w, nil, fmt.Errorf("%w: a request for stacks has a generation, a rank, and the header X-Muster", store.ErrInvalid))
		return
	}
	text, err := h.source.Stacks(r.Context(), gen, rank)
	reply(w, map[string]string{"stacks": text}, err)
}

func reply(w http.ResponseWriter, v any, err error) {
	code := http.StatusOK
	switch {
	case err == nil:
	case errors.Is(err, store.ErrNotFound):
		code = http.StatusNotFound
	case errors.Is(err, store.ErrDenied):
		code = http.StatusForbidden
	case errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrTooLarge):
		code = http.StatusBadRequest
	default:
		code = http.StatusBadGateway
	}
	if err != nil {
		v = map[string]string{"error": err.Error()}
	}
	write(w, code, v)
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
		v, err := h.watch.View(r.Context())
		if v == nil || v != last {
			if out.SetWriteDeadline(time.Now().Add(writeTime)) != nil || h.writeEvent(w, v, err) != nil || out.Flush() != nil {
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

// writeEvent writes one event: the view, or the reason why there is none.
func (h *handler) writeEvent(w io.Writer, v *View, away error) error {
	b, err := h.eventOf(v, away)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// eventOf encodes an event. A view may be large, so it is encoded once for all pages.
func (h *handler) eventOf(v *View, away error) ([]byte, error) {
	if away != nil {
		return event("away", away.Error())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.view != v {
		b, err := event("status", v)
		if err != nil {
			return nil, err
		}
		h.view, h.event = v, b
	}
	return h.event, nil
}

func event(name string, data any) ([]byte, error) {
	b, err := json.Marshal(data)
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, b), err
}
