package scenario

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// groupVerbs are the verbs of groups. Each has the options group= (by default the group that the
// session joined last) and of=, a session whose membership it uses instead of its own. Collective
// operations also have channel=, type=, label=, stall=, no=, which is the reason of a vote of no, and seq=
// (by default the next number of the channel).
var groupVerbs = map[string]verb{
	"join":   {do: join, waits: true},   // GROUP [rank=] [size=] [run=] [token= try=]: by default the place and the number of the sessions
	"shrink": {do: shrink, waits: true}, // [token= try=]

	"barrier":   {do: collective, waits: true},
	"broadcast": {do: collective, waits: true}, // root= [VALUE]
	"gather":    {do: collective, waits: true}, // root= VALUE
	"allgather": {do: collective, waits: true}, // VALUE
	"scatter":   {do: collective, waits: true}, // root= [VALUE…]
	"alltoall":  {do: collective, waits: true}, // VALUE…
	"sum":       {do: collective, waits: true}, // NUMBER…

	"send":         {do: send, waits: true}, // VALUE to= [tag=] [ttl=]
	"recv":         {do: recv, waits: true}, // from= [tag=] [pos=]
	"received":     {do: received},          // from= [tag=] pos=
	"unread":       {do: unread},            // how many of its messages have expired unread
	"closechannel": {do: closeChannel},      // CHANNEL

	"phase":   {do: phase},               // [NAME] [id=] [done=] [total=] [stall=] [ago=]; without a name: none
	"members": {do: members},             // [FIRST [NUMBER]]
	"leave":   {do: leave},               //
	"abort":   {do: leave},               // REASON
	"follow":  {do: follow, waits: true}, //
	"status":  {do: status},              // [PREFIX]
}

// member is a session's rank in a group.
type member struct {
	generation uint64
	rank       int
	next       map[string]uint64 // number of the next operation on a channel
	positions  map[string]uint64 // position of the next message of a stream
}

func (k *call) member() *member {
	s := k.s
	if of, ok := k.option("of"); ok {
		s = k.w.session(of)
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if m := s.groups[cmp.Or(k.text("group"), s.joined)]; m != nil {
		return m
	}
	return &member{generation: 999, next: map[string]uint64{}, positions: map[string]uint64{}}
}

// contribution returns a contribution of the session's rank.
func (k *call) contribution() (*member, wire.Contribution) {
	m := k.member()
	c := wire.Contribution{Generation: m.generation, Rank: m.rank, Verb: k.verb, Type: k.text("type")}
	return m, c
}

// next returns the option, or the number that follows the last one that was used.
func (k *call) next(option, name string, numbers map[string]uint64) uint64 {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	n := uint64(k.number(option, int(numbers[name]+1)))
	numbers[name] = max(n, numbers[name])
	return n
}

// failed returns the output of a call of a group: the error, and the failure, which is the same on
// all ranks.
func failed(err error) string {
	e, ok := errors.AsType[*store.Error](err)
	if !ok || e.Failure == nil {
		return err.Error()
	}
	f := e.Failure
	var more []string
	for i, rank := range f.Missing {
		text := fmt.Sprintf("rank %d is missing", rank)
		if i < len(f.Doing) {
			text += ": " + f.Doing[i]
		}
		more = append(more, text)
	}
	for _, rank := range f.Lost {
		more = append(more, fmt.Sprintf("rank %d is lost", rank))
	}
	for _, rank := range f.Left {
		more = append(more, fmt.Sprintf("rank %d has left", rank))
	}
	if f.By >= 0 {
		more = append(more, fmt.Sprint("by rank ", f.By))
	}
	for _, c := range f.Clash {
		more = append(more, fmt.Sprintf("rank %d called %s", c.Rank, called(c)))
	}
	if len(more) == 0 {
		return err.Error()
	}
	return err.Error() + " (" + strings.Join(more, "; ") + ")"
}

func called(c wire.Contribution) string {
	text := fmt.Sprintf("%s #%d", c.Verb, c.Seq)
	if c.Root >= 0 {
		text += fmt.Sprint(" root=", c.Root)
	}
	if c.Type != "" {
		text += " type=" + c.Type
	}
	if c.Label != "" {
		text += " label=" + c.Label
	}
	return text
}

// outcome returns the output of a call.
func outcome(value string, err error) string {
	if err != nil {
		return failed(err)
	}
	return value
}

func join(ctx context.Context, k *call) string {
	c := wire.Contribution{Group: k.word(0), Run: k.text("run"), Rank: k.number("rank", k.place), Size: k.number("size", k.places), Label: "process " + k.s.name}
	return k.join(ctx, c, c.Group)
}

func shrink(ctx context.Context, k *call) string {
	_, c := k.contribution()
	return k.join(ctx, c, cmp.Or(k.text("group"), k.s.joined))
}

func (k *call) join(ctx context.Context, c wire.Contribution, group string) string {
	claim := store.Claim{Token: k.bytes("token"), Try: uint64(k.number("try", 0))}
	f, err := k.s.JoinAs(ctx, claim, c, []byte(k.s.name))
	if err != nil {
		return failed(err)
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	k.s.joined = group
	k.s.groups[group] = &member{generation: f.Generation, rank: f.Rank, next: map[string]uint64{}, positions: map[string]uint64{}}
	return fmt.Sprintf("rank %d of %d: %s", f.Rank, f.Size, list(f.Members))
}

func collective(ctx context.Context, k *call) string {
	m, c := k.contribution()
	c.Channel, c.Label, c.Root, c.Stall = k.text("channel"), k.text("label"), k.number("root", -1), k.duration("stall")
	c.Seq = k.next("seq", c.Channel, m.next)
	if reason, ok := k.option("no"); ok {
		c.No, c.Reason = wire.CodeInvalid, reason
	}
	payload := k.payload(&c)
	values, err := k.s.Collect(ctx, c, payload)
	switch {
	case err != nil:
		return failed(err)
	case c.Want == wire.WantReduced:
		return numbers(values)
	case c.Want == wire.WantNothing:
		return "ok"
	}
	return list(values)
}

// payload returns what the rank gives, and sets what it wants.
func (k *call) payload(c *wire.Contribution) []byte {
	words := k.words()
	parts := make([][]byte, len(words))
	for i, v := range words {
		parts[i] = []byte(v)
	}
	c.Want = wire.WantNothing
	switch k.verb {
	case "broadcast":
		c.RootOnly, c.Want = true, int32(c.Root)
	case "gather":
		if c.Rank == c.Root {
			c.Want = wire.WantAll
		}
	case "allgather":
		c.Want = wire.WantAll
	case "scatter", "alltoall":
		c.RootOnly, c.Want = k.verb == "scatter", wire.WantPart
		if len(parts) > 0 {
			return wire.AppendParts(nil, parts)
		}
	case "sum":
		c.Want, c.Reduction = wire.WantReduced, wire.Reduction{Op: wire.ReduceSum, Kind: wire.Int64}
		var b []byte
		for _, v := range words {
			b = binary.LittleEndian.AppendUint64(b, uint64(k.parseInt(v)))
		}
		return b
	}
	return []byte(strings.Join(words, " "))
}

// numbers returns the text of the numbers of a reduction.
func numbers(values [][]byte) string {
	var words []string
	for b := range slices.Chunk(slices.Concat(values...), 8) {
		words = append(words, strconv.FormatInt(int64(binary.LittleEndian.Uint64(b)), 10))
	}
	return strings.Join(words, " ")
}

func send(ctx context.Context, k *call) string {
	_, c := k.contribution()
	c.Channel, c.Root = k.text("tag"), k.number("to", 0)
	return outcome("ok", k.s.Send(ctx, c, []byte(k.word(0)), k.duration("ttl")))
}

func recv(ctx context.Context, k *call) string {
	m, c := k.contribution()
	c.Channel, c.Root = k.text("tag"), k.number("from", 0)
	stream := fmt.Sprint(c.Root, " ", c.Channel)
	last := m.positions[stream]
	c.Seq = k.next("pos", stream, m.positions)
	v, _, err := k.s.Recv(ctx, c)
	if err != nil && !errors.Is(err, store.ErrExpired) {
		m.positions[stream] = last // it may be asked for again
	}
	return outcome(quoted(string(v)), err)
}

func received(ctx context.Context, k *call) string {
	_, c := k.contribution()
	c.Channel, c.Root, c.Seq = k.text("tag"), k.number("from", 0), uint64(k.number("pos", 0))
	return outcome("ok", k.s.Received(ctx, c))
}

func unread(ctx context.Context, k *call) string {
	_, c := k.contribution()
	n, err := k.s.Expire(ctx, c)
	return outcome(strconv.Itoa(n), err)
}

func closeChannel(ctx context.Context, k *call) string {
	m, c := k.contribution()
	c.Channel = k.word(0)
	k.w.mu.Lock()
	delete(m.next, c.Channel)
	maps.DeleteFunc(m.positions, func(stream string, _ uint64) bool {
		_, tag, _ := strings.Cut(stream, " ")
		return tag == c.Channel
	})
	k.w.mu.Unlock()
	return outcome("ok", k.s.CloseChannel(ctx, c))
}

func phase(ctx context.Context, k *call) string {
	_, c := k.contribution()
	p := wire.Phase{ID: uint64(k.number("id", 0)), Done: int64(k.number("done", 0)), Total: int64(k.number("total", 0)), Stall: k.duration("stall"), Ago: k.duration("ago")}
	if len(k.words()) > 0 {
		p.ID, p.Name = uint64(k.number("id", 1)), k.word(0)
	}
	return outcome("ok", k.s.Progress(ctx, c, p))
}

func members(ctx context.Context, k *call) string {
	_, c := k.contribution()
	at := []int{0, 0}
	for i, word := range k.words() {
		at[i] = k.parseInt(word)
	}
	all, err := k.s.Members(ctx, c, at[0], at[1])
	return outcome(list(all), err)
}

func leave(ctx context.Context, k *call) string {
	_, c := k.contribution()
	if k.verb == "abort" {
		c.No, c.Reason = wire.CodeAborted, k.word(0)
	}
	return outcome("ok", k.s.Leave(ctx, c))
}

func follow(ctx context.Context, k *call) string {
	_, c := k.contribution()
	return outcome("ok", k.s.Follow(ctx, c))
}

// status shows the groups, one after the other, and then the keys that are waited for.
func status(ctx context.Context, k *call) string {
	s, err := k.s.Status(ctx, k.word(0))
	if err != nil {
		return err.Error()
	}
	for _, g := range s.Groups {
		k.say(groupStatus(&g), waits)
	}
	for _, key := range s.Keys {
		k.say(fmt.Sprintf("key %s: %d waiting, the first for %v", quoted(key.Key), key.Calls, key.Waited), waits)
	}
	if len(s.Groups)+len(s.Keys) == 0 {
		return "nothing"
	}
	return ""
}

func groupStatus(g *store.GroupStatus) string {
	text := fmt.Sprintf("group %s: %d of %d present", quoted(g.Name), g.Present, g.Size)
	if g.Generation == 0 && g.Ended < 0 {
		text = fmt.Sprintf("group %s forms: %d of %d", quoted(g.Name), g.Present, g.Size)
	}
	for _, r := range g.Records {
		text += fmt.Sprintf("; %s for %v, present %v, missing %v", r.Verb, r.Age, r.Arrived.First(9), r.Missing.First(9))
		if r.Remaining > 0 {
			text += fmt.Sprintf(", %v left", r.Remaining)
		}
	}
	for _, r := range g.Ranks {
		for _, wait := range r.Waits {
			text += fmt.Sprintf("; rank %d waits in %s, peer %d, tag %q, for %v", r.Rank, wait.Verb, wait.Peer, wait.Tag, wait.Waited)
		}
		if r.Gone != wire.CodeOK {
			text += fmt.Sprintf("; rank %d: %v", r.Rank, r.Gone)
		}
		if p := r.Progress; p != nil {
			text += fmt.Sprintf("; rank %d: phase %q %d of %d, %v ago", r.Rank, p.Name, p.Done, p.Total, p.Ago)
		}
	}
	for _, f := range g.Failures {
		text += fmt.Sprintf("; %s failed: %v", f.Verb, f.Failure.Code)
	}
	if g.Revoked != nil {
		text += fmt.Sprintf("; over: %v %s", g.Revoked.Failure.Code, g.Revoked.Failure.Reason)
	}
	return strings.TrimSpace(text)
}
