package status

import (
	"context"
	"maps"
	"slices"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
)

// TorchOptions says what else Fetch reads: by default, nothing.
type TorchOptions struct {
	// Servers asks the debug servers of the ranks for what they have recorded of their collective
	// operations. Each rank's address is a key of the store, which
	// torch.distributed.debug.start_debug_server sets. Fetch sends requests to these addresses,
	// so set it only if those who write to the store may choose where requests go to.
	Servers bool
	// Recordings have, by rank, what was recorded before, such as in files. They are of the job in
	// the store, if it has one job.
	Recordings map[int]*Recording
}

// Fetch returns the status of a store, with PyTorch's processes: servers and relays publish which
// processes use them as their TCPStore, and what those wait for (package tcpstore). The process
// groups of PyTorch whose ranks are known are groups in the result.
//
// A rank is missing only if its key is missing now. The ranks in keys, and those in the environment
// of processes on the host of their server or relay, are known. What is guessed is among the Notes of
// a group, and begins with "guess: ".
//
// o says what else it reads: what the ranks of PyTorch have recorded of their collective operations,
// that is which rank is in which one, and which ranks have not called it, or another one.
func Fetch(ctx context.Context, s *store.Store, o TorchOptions) (*store.Status, error) {
	now, err := s.Status(ctx, "")
	if err != nil || now.Replication != nil && !now.Replication.Leading { // a standby answers nothing else
		return now, err
	}
	prefixes := map[string]bool{"": true}
	for e, err := range s.List(ctx, tcpwire.PrefixesKey) {
		if err != nil || len(prefixes) == mostPrefixes { // of a store without lists, or no right to read them
			break
		}
		prefixes[string(e.Value)] = true
	}
	unread := o.Recordings // until a part has processes
	for _, prefix := range slices.Backward(slices.Sorted(maps.Keys(prefixes))) {
		part := store.Prefix(s, prefix)
		recordings := unread
		if o.Servers {
			recordings = askServers(ctx, part)
			maps.Copy(recordings, unread)
		}
		if addTorchJobs(ctx, part, prefix, recordings, now) || prefix == "" {
			unread = nil
		}
		_ = part.Close()
	}
	return now, nil
}

// addTorchJobs adds the jobs in a part of the store to the status of the whole. It reports whether
// there are any.
func addTorchJobs(ctx context.Context, part *store.Store, prefix string, recordings map[int]*Recording, now *store.Status) bool {
	t := &torchJobs{groups: map[string]*torchGroup{}, servers: map[*tcpwire.Process]string{}, noted: map[*tcpwire.Process]bool{}}
	for e, err := range part.List(ctx, tcpwire.ProcessesKey) {
		if err != nil {
			break
		}
		t.add(&e)
	}
	if len(t.processes) == 0 && (prefix != "" || len(recordings) == 0) {
		return false
	}
	t.assign()
	if len(recordings) > 0 {
		t.addRecordings(recordings)
	}
	for name, g := range inOrder(t.groups) {
		v := t.status(ctx, part, g)
		v.Name = prefix + name
		now.Groups = append(now.Groups, v)
	}
	now.Keys = t.explainKeys(prefix, now.Keys)
	return true
}
