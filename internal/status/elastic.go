package status

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// ElasticJob is a job of package membership.
type ElasticJob struct {
	Name       string `json:"name"`            // with the prefix that it is below
	Nodes      bool   `json:"nodes,omitempty"` // its workers are the nodes of a job of "muster run"
	Generation uint64 `json:"generation"`      // of its newest view; 0: it has had none
	Size       int    `json:"size"`            // workers of that view
	Standbys   int    `json:"standbys"`        // workers that are not in that view
	Waiting    bool   `json:"waiting"`         // it has no view now: that one has ended
	State      string `json:"state"`           // these, in words

	// Changes are those since the first view, and NoView is how long they have left the job without a view.
	Changes int             `json:"changes"`
	NoView  float64         `json:"no_view_seconds"`
	Newest  []ElasticChange `json:"newest_changes"` // newest first, at most 16
}

// ElasticChange is a change of an elastic job.
type ElasticChange struct {
	Time time.Time `json:"time"` // by the clock of a worker
	What string    `json:"what"` // such as "view 7 of size 3: lost host-1-0 (no view for 0.6 s)"
}

// mostElastic is how many elastic jobs are shown.
const mostElastic = 64

// FetchElastic returns the elastic jobs of s, as far as it may be read: those at the top, and those below the
// prefixes of groups in now, the status of s; call it before Of, which renames the groups. A store without such
// jobs gets one request.
func FetchElastic(ctx context.Context, s *store.Store, now *store.Status) []ElasticJob {
	all := []ElasticJob{}
	if now.Replication != nil && !now.Replication.Leading { // a standby answers nothing else
		return all
	}
	prefixes := map[string]bool{"": true}
	for i := range now.Groups {
		if m := viewGroup.FindStringSubmatch(now.Groups[i].Name); m != nil && len(prefixes) < mostPrefixes {
			prefixes[strings.TrimSuffix(now.Groups[i].Name, m[0])] = true
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(prefixes)) {
		part := store.Prefix(s, prefix)
		for _, name := range elasticNames(ctx, part, mostElastic-len(all)) {
			if t, err := membership.ReadStatus(ctx, part, name); err == nil && (t.Generation > 0 || t.Registered > 0) {
				all = append(all, elasticJob(prefix, name, t))
			}
		}
		_ = part.Close()
	}
	return all
}

// elasticNames returns the names of at most so many jobs. It skips the keys of each, of which there may be many.
func elasticNames(ctx context.Context, part *store.Store, most int) (names []string) {
	const all = "membership/"
	var after []string
	for range most {
		var rep wire.Reply
		err := part.Do(ctx, &wire.Request{Op: wire.OpList, Key: all, Keys: after, Limit: 1, KeysOnly: true}, &rep)
		if err != nil || len(rep.Keys) == 0 {
			break
		}
		escaped, _, _ := strings.Cut(strings.TrimPrefix(rep.Keys[0], all), "/")
		after = []string{all + escaped + "0"} // 0 follows /, so it follows the keys of the job
		if name, err := url.PathUnescape(escaped); err == nil {
			names = append(names, name)
		}
	}
	return names
}

func elasticJob(prefix, name string, t *membership.Status) ElasticJob {
	j := ElasticJob{
		Generation: t.Generation, Size: t.Workers, Standbys: t.Registered - (t.Workers - t.Gone), Waiting: t.Generation == 0 || t.Gone > 0,
		Changes: t.History.Changes, NoView: t.History.Seconds, Newest: []ElasticChange{},
	}
	if of, ok := strings.CutPrefix(name, "muster-run/"); ok {
		j.Nodes, name = true, "nodes of "+of
	}
	j.Name = prefix + name
	view := fmt.Sprintf("view %d of size %d", t.Generation, t.Workers)
	switch {
	case t.Registered == 0:
		j.State = "no view: no worker is left; the last was " + view
	case t.Generation == 0:
		j.State = fmt.Sprintf("no view yet: %d of at least %d workers", t.Registered, t.Min)
	case j.Waiting:
		j.State = fmt.Sprintf("no view: %d of at least %d workers; the last was %s", t.Registered, t.Min, view)
	case j.Standbys > 0:
		j.State = fmt.Sprintf("%s, and %d more", view, j.Standbys)
	default:
		j.State = view
	}
	for _, c := range slices.Backward(t.History.Newest) {
		j.Newest = append(j.Newest, ElasticChange{time.UnixMilli(c.Time).UTC(), c.String()})
	}
	return j
}
