package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/flightrecorder"
	"github.com/muster-pg/muster/store"
)

// serverKey and a rank are the key that has the address of the rank's debug server, as
// torch.distributed.debug sets it.
const serverKey = "debug_server/rank"

// Limits on the requests that keys of the store can cause.
const (
	mostServers   = 1024
	mostAtOnce    = 64
	mostRecorded  = 16 << 20 // bytes of an answer
	serverTimeout = 2 * time.Second
)

// debugClient sends requests to debug servers: directly, without a redirect to another server.
var debugClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// askServers returns what the ranks in a part of the store have recorded, as far as they have debug
// servers.
func askServers(ctx context.Context, part *store.Store) map[int]*Recording {
	recordings := map[int]*Recording{}
	atOnce := make(chan struct{}, mostAtOnce)
	var asked sync.WaitGroup
	for rank, addr := range servers(ctx, part) {
		r := &Recording{Source: addr, server: addr}
		recordings[rank] = r
		asked.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			r.ask(ctx)
		})
	}
	asked.Wait()
	return recordings
}

// servers returns the addresses of the debug servers in a part of the store, by rank.
func servers(ctx context.Context, part *store.Store) map[int]string {
	found := map[int]string{}
	for e, err := range part.List(ctx, serverKey) {
		if err != nil || len(found) == mostServers {
			break
		}
		rank, err := strconv.Atoi(strings.TrimPrefix(e.Key, serverKey))
		if err == nil && rank >= 0 && rank < mostRanks && len(e.Value) > 0 {
			found[rank] = string(e.Value)
		}
	}
	return found
}

// ask asks the debug server at r.Source. Each backend has its own recorder.
func (r *Recording) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	gloo, err := record(ctx, r.Source, "fr_trace_json")
	if errors.Is(err, context.DeadlineExceeded) { // it does not answer
		r.Err = err
		return
	}
	nccl, err2 := record(ctx, r.Source, "dump_nccl_trace_json")
	r.At, r.Live = time.Now(), true
	switch {
	case gloo == nil && nccl == nil:
		r.Err = cmp.Or(err, err2)
	case gloo == nil:
		r.Dump = nccl
	default:
		if r.Dump = gloo; nccl != nil {
			gloo.Calls = append(gloo.Calls, nccl.Calls...)
			gloo.Dropped = gloo.Dropped || nccl.Dropped
		}
	}
}

// record returns the answer of a handler of a debug server.
func record(ctx context.Context, addr, handler string) (*flightrecorder.Dump, error) {
	b, err := askServer(ctx, addr, handler)
	if err != nil {
		return nil, err
	}
	return flightrecorder.Parse(b)
}

// askServer sends a request to a debug server. Only the host and port of addr count.
func askServer(ctx context.Context, addr, handler string) ([]byte, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%.200q is no address of a debug server", addr)
	}
	to := url.URL{Scheme: "http", Host: u.Host, Path: "/handler/" + handler}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := debugClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("its debug server does not answer: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its debug server at %s answers %s: %s", u.Host, handler, res.Status)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, mostRecorded+1))
	if err == nil && len(b) > mostRecorded {
		err = fmt.Errorf("its debug server at %s answers %s with more than %d MiB", u.Host, handler, mostRecorded>>20)
	}
	return b, err
}
