package vllm_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// TestRules runs the rules of groups as text. A session is a rank, with the verbs of type rank: "2" of the
// group that has the store, "b2" of the group "b", which is below that prefix. Others, such as "keys", only use
// the verbs of stores. The file "bare" has a store like a TCPStore.
func TestRules(t *testing.T) {
	scenario.Run(t, "testdata/rules", scenario.Engine{
		Name: "vLLM's group",
		Start: func(t *testing.T, _ scenario.Settings) func(string) scenario.Session {
			s := memory(t)
			if path.Base(t.Name()) == "bare" {
				s = bare(t)
			}
			return func(name string) scenario.Session {
				prefix := strings.TrimRight(name, "0123456789")
				n, _ := strconv.Atoi(name[len(prefix):])
				r := &rank{n: n, store: store.Prefix(s, prefix), name: prefix}
				t.Cleanup(r.end)
				return scenario.Session{Engine: scenario.Shared{Engine: s.Engine()}, Verbs: r.verbs()}
			}
		},
	})
}

// rank is a rank of a group.
type rank struct {
	n     int
	store *store.Store
	name  string // of its group
	group *vllm.Group
}

func (r *rank) end() {
	if r.group != nil {
		_ = r.group.Close()
	}
}

// verbs returns what a rank can do.
func (r *rank) verbs() map[string]func(ctx context.Context, args []string) string {
	verbs := map[string]func(ctx context.Context, args []string) string{}
	for name, verb := range map[string]func(ctx context.Context, args arguments) (any, error){
		"join":       r.join,      // SIZE [TIMEOUT [EXPIRATION]]
		"send":       r.send,      // RANK VALUE
		"recv":       r.recv,      // RANK [TYPE]
		"broadcast":  r.broadcast, // RANK VALUE; on the other ranks RANK [TYPE]
		"all-gather": r.allGather, // VALUE
		"all-reduce": r.allReduce, // VALUE [OP]
		"barrier":    func(ctx context.Context, _ arguments) (any, error) { return "passed", r.group.Barrier(ctx) },
		"close":      func(context.Context, arguments) (any, error) { return "closed", r.group.Close() },
	} {
		verbs[name] = func(ctx context.Context, args []string) string {
			if r.group == nil && name != "join" {
				return "it has not joined"
			}
			return outcome(verb(ctx, args))
		}
	}
	return verbs
}

func (r *rank) join(ctx context.Context, args arguments) (any, error) {
	timeout, _ := time.ParseDuration(args.at(1))
	expiration, _ := time.ParseDuration(args.at(2))
	g, err := vllm.Join(ctx, vllm.Config{Rank: r.n, Size: args.number(), Store: r.store, Name: r.name, Shared: r.name != "", Timeout: timeout, DataExpiration: expiration})
	if err == nil {
		r.group = g
	}
	return "joined", err
}

func (r *rank) send(ctx context.Context, args arguments) (any, error) {
	if x, ok := args.value(1).(*tensor.Tensor); ok {
		return "sent", r.group.Send(ctx, args.number(), x)
	}
	return "sent", vllm.SendObj(ctx, r.group, args.number(), args.value(1))
}

func (r *rank) recv(ctx context.Context, args arguments) (any, error) {
	switch src := args.number(); args.at(1) {
	case "text":
		return vllm.RecvObj[string](ctx, r.group, src)
	case "number":
		return vllm.RecvObj[int](ctx, r.group, src)
	case "tensor":
		return r.group.Recv(ctx, src)
	default:
		return vllm.RecvObj[any](ctx, r.group, src)
	}
}

func (r *rank) broadcast(ctx context.Context, args arguments) (any, error) {
	src := args.number()
	if src == r.n {
		if x, ok := args.value(1).(*tensor.Tensor); ok {
			return r.group.Broadcast(ctx, src, x)
		}
		return vllm.BroadcastObj(ctx, r.group, src, args.value(1))
	}
	switch args.at(1) {
	case "text":
		return vllm.BroadcastObj(ctx, r.group, src, "")
	case "number":
		return vllm.BroadcastObj(ctx, r.group, src, 0)
	case "tensor":
		return r.group.Broadcast(ctx, src, nil)
	default:
		return vllm.BroadcastObj[any](ctx, r.group, src, nil)
	}
}

func (r *rank) allGather(ctx context.Context, args arguments) (any, error) {
	return vllm.AllGatherObj(ctx, r.group, args.value(0))
}

func (r *rank) allReduce(ctx context.Context, args arguments) (any, error) {
	x, _ := args.value(0).(*tensor.Tensor)
	op := vllm.Sum
	if args.at(1) == "avg" {
		op = pgroup.Avg
	}
	return r.group.AllReduce(ctx, x, op)
}

// arguments are those of a verb.
type arguments []string

// at returns an argument, or "".
func (a arguments) at(i int) string {
	if i < len(a) {
		return a[i]
	}
	return ""
}

// number returns the first one, a rank or a size.
func (a arguments) number() int {
	n, _ := strconv.Atoi(a.at(0))
	return n
}

// value returns a number, a function if it is "func", a tensor of N zeros if it is DTYPE[N], none if it is
// "none", and otherwise a text.
func (a arguments) value(i int) any {
	word := a.at(i)
	kind, n, sized := strings.Cut(strings.TrimSuffix(word, "]"), "[")
	if number, err := strconv.Atoi(word); err == nil {
		return number
	}
	switch {
	case word == "none":
		return (*tensor.Tensor)(nil)
	case word == "func":
		return func() {}
	case sized:
		d, err := tensor.ParseDType(kind)
		if err == nil {
			return tensor.New(d, arguments{n}.number())
		}
	}
	return word
}

// outcome returns the line of output of a verb: its result, or the errors that its error matches and its text.
func outcome(v any, err error) string {
	if err == nil {
		return fmt.Sprint(v)
	}
	var is []string
	for _, target := range []struct {
		name string
		error
	}{
		{"ErrTimeout", pgroup.ErrTimeout},
		{"ErrCancelled", pgroup.ErrCancelled},
		{"ErrLost", pgroup.ErrLost},
		{"ErrUnknown", pgroup.ErrUnknown},
		{"ErrUnavailable", pgroup.ErrUnavailable},
		{"ErrLeft", pgroup.ErrLeft},
		{"ErrMismatch", pgroup.ErrMismatch},
		{"ErrConflict", pgroup.ErrConflict},
		{"ErrExpired", pgroup.ErrExpired},
		{"ErrInvalid", pgroup.ErrInvalid},
		{"ErrClosed", pgroup.ErrClosed},
		{"ErrBusy", pgroup.ErrBusy},
		{"ErrRefused", vllm.ErrRefused},
	} {
		if errors.Is(err, target.error) {
			is = append(is, target.name)
		}
	}
	return strings.Join(is, " ") + ": " + barrierID.ReplaceAllString(err.Error(), "barrier_ID")
}

// barrierID is the random name of a barrier.
var barrierID = regexp.MustCompile(`barrier_[0-9a-f-]{36}`)
