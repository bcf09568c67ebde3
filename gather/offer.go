package gather

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// offer describes the items that a rank sends, and where they are. It goes through the group's
// store to all ranks of the list, so it is short: a long list of items is stored with the items.
type offer struct {
	Verb    uint8  // index in verbs
	Call    uint64 // number of the call on this list
	Fault   *fault // why this rank cannot send; the other fields are empty then
	Absent  bool
	Ready   bool           // the first rank cannot fail: it can read all items and the list
	Config  bool           // the unnamed item is a config
	Axis    int            // axis of a Concat
	List    []byte         // the items and where they are; nil if it is long
	Long    *listLocation  // where a long list is, unless that is in a directory
	Memory  uint64         // number of the connection over which memory is shared
	Stream  uint64         // number of the connection over which items are fetched
	Export  uint64         // identifies the items of the stream; 0: there are none
	Version *nfsws.Version // of the items in a directory

	listed bool         // the list has been read into the fields below
	refs   []shm.Ref    // shared memory that contains items,
	items  []item       // the items, ordered by name,
	blocks []*shm.Block // and the refs as the first rank has mapped them
}

// verbs has all verbs: it is an error if ranks call different ones.
var verbs = []string{opTensors, opTensorMaps, opConfigs, opConcat, opExport}

const (
	opTensors    = "gather.tensors"
	opTensorMaps = "gather.tensormaps"
	opConfigs    = "gather.configs"
	opConcat     = "gather.concat"
	opExport     = "gather.export"
)

// listLocation is where a long list is: in shared memory, or after the last item of a stream.
type listLocation struct {
	Ref *shm.Ref // nil: in the stream
	Len int
}

// item is one tensor of an offer.
type item struct {
	Name  string
	DType tensor.DType
	Shape []int
	Ref   int   // index of the ref that contains it, or streamed
	Off   int64 // offset there
}

// streamed is the Ref of an item that is not in shared memory.
const streamed = -1

// shortList is the maximum length of a list that is sent with the offer, to every rank.
const shortList = 2 << 10

func (it *item) String() string {
	return (&tensor.Tensor{DType: it.DType, Shape: it.Shape}).String()
}

// size returns the length in bytes. The sizes of other ranks' items are checked when they arrive.
func (it *item) size() int {
	n, _ := tensor.Size(it.DType, it.Shape...)
	return n
}

func (it *item) equal(other *item) bool {
	return it.DType == other.DType && slices.Equal(it.Shape, other.Shape)
}

// wrap returns the tensor of an item in data.
func (it *item) wrap(data []byte) (*tensor.Tensor, error) {
	return tensor.Wrap(data, it.DType, it.Shape...)
}

// open parses the list, if it is here.
func (o *offer) open() error {
	if o.Absent || o.List == nil {
		return nil
	}
	return o.read(o.List)
}

// read parses the list.
func (o *offer) read(list []byte) (err error) {
	if o.refs, o.items, err = parseList(list); err != nil {
		return err
	}
	o.listed = true
	return o.checkItems()
}

// openOffers decodes the offers. It fails if a rank cannot send because of an error, or if an offer
// is invalid. Each rank gets the same result.
func (v *verb) openOffers(encoded [][]byte) ([]offer, error) {
	offers := make([]offer, len(encoded))
	for i := range offers {
		if err := offers[i].decode(encoded[i]); err != nil {
			return nil, failed(i, err)
		}
	}
	if err := v.sameCall(offers); err != nil {
		return nil, err
	}
	for i := range offers {
		if offers[i].Verb != offers[0].Verb {
			return nil, mismatch(i, "rank %d calls %s, and rank %d %s", v.ranks[i], offers[i].verb(), v.ranks[0], offers[0].verb())
		}
		if f := offers[i].Fault; f != nil {
			if f.Code == wire.CodeFailed {
				f.By = i
			}
			return nil, f
		}
		if !offers[i].valid(i == 0, v.ga.files != nil) {
			return nil, failed(i, errMalformed)
		}
		if err := offers[i].open(); err != nil {
			return nil, failed(i, err)
		}
	}
	return offers, nil
}

// sameCall fails unless all ranks are at the same call on this list. A rank that timed out before
// the list's group was formed is ahead of those that still waited, which did not notice it. After
// this failure they are at the same call.
func (v *verb) sameCall(offers []offer) error {
	least, most := offers[0].Call, offers[0].Call
	for _, o := range offers {
		least, most = min(least, o.Call), max(most, o.Call)
	}
	if least == most {
		return nil
	}
	f := &fault{Code: wire.CodeTimeout, By: -1, Reason: "they gave this call up before the others came"}
	for i, o := range offers {
		if o.Call > least {
			f.Missing = append(f.Missing, i)
		}
	}
	v.calls = most
	return f
}

func (o *offer) verb() string {
	if int(o.Verb) < len(verbs) {
		return verbs[o.Verb]
	}
	return "another verb"
}

// valid reports whether an offer can be received: from a directory if there is one, and not
// otherwise.
func (o *offer) valid(first, files bool) bool {
	switch {
	case o.Absent:
		return true
	case o.Ready && o.List == nil:
		return false
	}
	return (o.Version != nil) == (files && !first)
}

// matchesVerb reports whether the listed items are those that the verb sends.
func (o *offer) matchesVerb() bool {
	switch o.verb() {
	case opTensors, opConcat:
		return !o.Config && len(o.items) == 1 && o.items[0].Name == unnamed
	case opConfigs:
		cfg := o.find(unnamed)
		return o.Config && (cfg != nil && cfg.DType == tensor.U8 && len(cfg.Shape) == 1 || o.Version != nil)
	}
	return !o.Config
}

// compare compares offers that are all listed.
func (v *verb) compare(agree check, offers []offer) error {
	for i := range offers {
		if o := &offers[i]; !o.Absent && o.listed && !o.matchesVerb() {
			return failed(i, errMalformed)
		}
	}
	return agree(v, offers)
}

// listed reports whether all lists are here.
func listed(offers []offer) bool {
	return !slices.ContainsFunc(offers, func(o offer) bool { return !o.Absent && o.List == nil })
}

// ready reports whether the first rank cannot fail.
func ready(offers []offer) bool {
	return !slices.ContainsFunc(offers, func(o offer) bool { return !o.Ready })
}

// find returns the item of a name, or nil.
func (o *offer) find(name string) *item {
	i, ok := o.index(name)
	if !ok {
		return nil
	}
	return &o.items[i]
}

func (o *offer) index(name string) (int, bool) {
	return slices.BinarySearchFunc(o.items, name, func(it item, name string) int { return cmp.Compare(it.Name, name) })
}

func (o *offer) total() (n int64) {
	for i := range o.items {
		n += int64(o.items[i].size())
	}
	return n
}

// checkItems rejects invalid items: they come from the network.
func (o *offer) checkItems() error {
	total := 0
	for i := range o.items {
		it := &o.items[i]
		n, err := tensor.Size(it.DType, it.Shape...)
		switch {
		case err != nil:
			return named(it.Name, err)
		case i > 0 && o.items[i-1].Name >= it.Name:
			return fmt.Errorf("tensor %q comes twice or out of order", it.Name)
		case n > maxInt-len(o.items)*align-total:
			return fmt.Errorf("tensor %q: all together are too large", it.Name)
		case !o.within(it.Ref, it.Off, n):
			return fmt.Errorf("tensor %q lies outside of the memory that is offered", it.Name)
		}
		total += n
	}
	return nil
}

// within reports whether n bytes from off are in the offered memory.
func (o *offer) within(ref int, off int64, n int) bool {
	switch {
	case ref == streamed:
		return true
	case ref < 0 || ref >= len(o.refs):
		return false
	}
	return off >= 0 && off <= o.refs[ref].Len && int64(n) <= o.refs[ref].Len-off
}
