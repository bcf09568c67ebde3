package status

import (
	"cmp"
	"context"
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
	for e, err := range part.List(ctx, serverKey) {
		if err != nil || len(recordings) == mostServers {
			break
		}
		rank, err := strconv.Atoi(strings.TrimPrefix(e.Key, serverKey))
		if err != nil || rank < 0 || rank >= mostRanks || len(e.Value) == 0 {
			continue
		}
		r := &Recording{Source: string(e.Value), server: string(e.Value), Live: true}
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

// ask asks the debug server of r. Each backend has its own recorder, and one dump is enough: a rank may
// have one backend only.
func (r *Recording) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	for _, handler := range []string{"fr_trace_json", "dump_nccl_trace_json"} {
		var dump *flightrecorder.Dump
		b, err := askServer(ctx, r.server, handler)
		if err == nil {
			dump, err = flightrecorder.Parse(b)
		}
		switch {
		case err != nil:
			r.Err = cmp.Or(r.Err, err)
		case r.Dump == nil:
			r.Dump = dump
		default:
			r.Dump.Calls = append(r.Dump.Calls, dump.Calls...)
			r.Dump.Dropped = r.Dump.Dropped || dump.Dropped
		}
		if ctx.Err() != nil { // it does not answer
			break
		}
	}
	r.At = time.Now()
	if r.Dump != nil {
		r.Err = nil
	}
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
