package gather

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Part is what a rank has of a tensor: a block of it, or, if Start is nil, all of it.
type Part struct {
	*tensor.Tensor
	Start []int // of its first element in the whole tensor
	Shape []int // of the whole tensor
}

// ExportOptions are the options of Export.
type ExportOptions struct {
	Metadata map[string]string // of each file; that of rank 0 counts
}

// Export writes the tensors of which the ranks of the group have parts into a directory that all of them
// reach, as one model: a safetensors file of each rank that owns tensors, and their index. Each tensor has
// one owner, a rank that has a part of it, so that all have about the same number of bytes; the others send
// their parts to it, a block at a time. Of ranks that have the same part, one writes it: replicas are not
// compared. Parts may be blocks of any mesh, and each element must be in one. Of tied tensors, whose parts
// have the same memory on each rank, the first by name is written; the metadata of its file has the names of
// the others, each with that name, as those of safetensors.torch.save_model.
//
// All ranks of the group call it, with nil parts if they have none. Either all succeed, and the model is
// complete and on the disk, or all get the same error, which names the rank at fault, and no file of it is
// left. The names of files are new ones each time, and the index is renamed last: until then the directory
// has the older model, whose files are removed after it, as are those that killed jobs have left. If a rank
// closes the group, or rank 0 dies, in the last step, an error does not say which of the two models the
// directory has; it has one of them, whole.
//
// The directory must be one to which only this group exports at a time. A second Export of this Gatherer at
// the same time is pgroup.ErrBusy.
func Export(ctx context.Context, ga *Gatherer, dir string, parts map[string]Part, o *ExportOptions) (err error) {
	ctx, cancel := ga.bound(ctx)
	defer cancel()
	e := &exporting{ga: ga, dir: dir, parts: parts, rank: ga.group.Rank()}
	if o != nil {
		e.metadata = o.Metadata
	}
	if err := e.agree(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.discard()
		}
	}()
	for _, step := range []func(context.Context) error{e.prepare, e.write, e.name, e.commit} {
		if err := e.agreed(ctx, step(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// agreed returns the error of the lowest rank with one, the same on all ranks.
func (e *exporting) agreed(ctx context.Context, mine error) error {
	var out outcome
	if re, ok := errors.AsType[*pgroup.RankError](mine); ok && re.Failure != nil { // of a verb, with ranks of the group
		out.Fault = &fault{Code: re.Code, By: re.By, Missing: re.Missing, Lost: re.Lost, Reason: re.Reason}
	} else if mine != nil {
		out.Fault = asFault(failed(e.rank, mine))
	}
	all, gone := pgroup.AllGather(ctx, e.ga.group.Channel(controlChannel), out)
	if gone != nil {
		return e.ga.rankError(opExport, nil, gone)
	}
	for _, o := range all {
		if o.Fault != nil {
			return withCause(e.ga.rankError(opExport, nil, o.Fault), mine)
		}
	}
	return nil
}

// exporting is one call of Export.
type exporting struct {
	ga       *Gatherer
	dir      string
	parts    map[string]Part
	metadata map[string]string
	rank     int

	plan  *exportPlan
	token string // in the names of all files of this export
}

// agree exchanges what all ranks have, and plans who writes it.
func (e *exporting) agree(ctx context.Context) error {
	list, err := listParts(e.parts)
	mine := exportList{Parts: list}
	if err != nil {
		mine = exportList{Err: err.Error()}
	}
	if e.rank == 0 {
		mine.Metadata, mine.Token = e.metadata, rand.Text()[:12]
	}
	all, gone := pgroup.AllGather(ctx, e.ga.group.Channel(controlChannel), mine)
	if gone != nil {
		return e.ga.rankError(opExport, nil, gone)
	}
	for rank, l := range all {
		if l.Err != "" {
			return withCause(e.ga.rankError(opExport, nil, failed(rank, errors.New(l.Err))), err)
		}
	}
	e.metadata, e.token = all[0].Metadata, all[0].Token
	if !token.MatchString(e.token) {
		return e.ga.rankError(opExport, nil, failed(0, errMalformed))
	}
	if e.plan, err = planExport(all); err != nil {
		return e.ga.rankError(opExport, nil, err)
	}
	return nil
}

// prepare makes the directory on rank 0, and removes what killed jobs have left there.
func (e *exporting) prepare(context.Context) error {
	if e.rank != 0 {
		return nil
	}
	if err := os.MkdirAll(e.dir, 0o777); err != nil {
		return err
	}
	const single = "model.safetensors"
	if _, err := os.Lstat(filepath.Join(e.dir, single)); err == nil {
		return fmt.Errorf("%s has %s, which readers may take instead: remove it, or name another directory", e.dir, single)
	}
	return e.clean(e.indexed())
}

// token is what tells the files of one export from those of all others.
var token = regexp.MustCompile(`^[0-9A-Z]{12}$`)

// exported are the names of files of exports, complete or not.
var exported = regexp.MustCompile(`^(\.muster-export-.*|model-[0-9A-Z]{12}-\d{5}-of-\d{5}\.safetensors)$`)

// clean removes the files of exports that are not in a model.
func (e *exporting) clean(model map[string]bool) error {
	left, err := os.ReadDir(e.dir)
	for _, file := range left {
		if exported.MatchString(file.Name()) && !model[file.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(e.dir, file.Name())))
		}
	}
	return err
}

// indexed returns the files of the model in the directory.
func (e *exporting) indexed() map[string]bool {
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	text, _ := os.ReadFile(e.index())
	_ = json.Unmarshal(text, &index) // without one, there is no model
	files := map[string]bool{}
	for _, name := range index.Files {
		files[name] = true
	}
	return files
}

// write writes the file of this rank, and sends its parts to the owners of others.
func (e *exporting) write(ctx context.Context) (own error) {
	var running sync.WaitGroup
	for _, owner := range e.plan.owners {
		list := e.plan.ranksOf(owner)
		if !slices.Contains(list, e.rank) {
			continue
		}
		one := func() {
			err := e.writeFor(ctx, owner, list)
			if owner == e.rank { // others learn of it in their verb, and from this rank
				own = err
			}
		}
		if e.ga.files != nil { // a rank publishes one version of its files at a time
			one()
		} else {
			running.Go(one)
		}
	}
	running.Wait()
	return own
}

// writeFor takes part in the writing of an owner's file.
func (e *exporting) writeFor(ctx context.Context, owner int, list []int) error {
	if len(list) == 1 {
		return e.writeFile(ctx, nil)
	}
	v, err := e.ga.begin(ctx, opExport, list)
	if err != nil {
		return err
	}
	defer func() { v.end(ctx, err) }()
	if !v.first() {
		own := contribution{tensors: map[string]*tensor.Tensor{}, lazy: true}
		for _, t := range e.plan.tensors[owner] {
			if t.sends(e.rank) {
				own.tensors[t.name] = e.parts[t.name].Tensor
			}
		}
		err = v.sendAll(ctx, own, anyOffers)
		return err
	}
	l := &resources{}
	defer l.release()
	own := contribution{absent: true, lazy: true}
	err = v.receiveOffers(ctx, own, l, anyOffers, func(ctx context.Context, offers []offer) error {
		from, err := v.sources(ctx, offers, own, l)
		if err != nil {
			return err
		}
		senders := map[int]sentBy{}
		for i, o := range offers {
			for _, t := range e.plan.tensors[owner] {
				if it := o.find(t.name); t.sends(list[i]) && (it == nil || it.DType != t.DType || !slices.Equal(it.Shape, t.boxOf(list[i]).Shape)) {
					return mismatch(i, "tensor %q: rank %d sends another part than it said", t.name, list[i])
				}
			}
			senders[list[i]] = sentBy{from[i], i}
		}
		return e.writeFile(ctx, senders)
	})
	return err
}

func (e *exporting) temporary(what any) string {
	return filepath.Join(e.dir, fmt.Sprintf(".muster-export-%s-%v.part", e.token, what))
}

func (e *exporting) index() string { return filepath.Join(e.dir, safetensors.IndexName) }

// fileOf returns the name of an owner's file.
func (e *exporting) fileOf(owner int) string {
	return fmt.Sprintf("model-%s-%05d-of-%05d.safetensors", e.token, slices.Index(e.plan.owners, owner)+1, len(e.plan.owners))
}

// writeFile writes the tensors of this rank, from its own parts and from those of senders.
func (e *exporting) writeFile(ctx context.Context, senders map[int]sentBy) error {
	f, err := os.OpenFile(e.temporary(e.rank), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriterSize(f, 1<<20)
	w, err := safetensors.NewWriter(b, e.plan.infos(e.rank), e.plan.metadata(e.rank, e.metadata))
	if err != nil {
		return err
	}
	all := map[string]*blocks.Tensor{}
	for _, t := range e.plan.tensors[e.rank] {
		if all[t.name], err = e.assembled(ctx, t, senders); err != nil {
			return err
		}
	}
	var inOrder []*blocks.Tensor
	for _, name := range w.Names() {
		inOrder = append(inOrder, all[name])
	}
	if err := blocks.Stream(ctx, w, inOrder, 0); err != nil {
		return err
	}
	return errors.Join(w.Close(), b.Flush(), f.Sync(), f.Close())
}

// sentBy is what a rank sends, and its index in the list.
type sentBy struct {
	source
	index int
}

// assembled returns a tensor of this rank with its parts.
func (e *exporting) assembled(ctx context.Context, t *exportTensor, senders map[int]sentBy) (*blocks.Tensor, error) {
	x := &blocks.Tensor{Name: t.name, Shape: t.Shape, Bits: t.DType.Bits()}
	for _, h := range t.held {
		a, err := blocks.Array{Box: h.Box}.ToBytes(x.Bits)
		if err != nil {
			return nil, named(t.name, err)
		}
		p := blocks.Part{Array: a, Who: fmt.Sprint("rank ", h.from)}
		from, ok := senders[h.from]
		if h.from == e.rank {
			from, ok = sentBy{local{t.name: e.parts[t.name].Tensor}, 0}, true
		}
		if !ok {
			return nil, named(t.name, fmt.Errorf("rank %d sends nothing", h.from))
		}
		read := reading(ctx, from, t.name)
		p.Read = func(b []byte, at int64) error {
			if err := read(b, at); err != nil {
				return failed(from.index, named(t.name, err))
			}
			return nil
		}
		x.Parts = append(x.Parts, p)
	}
	return x, nil
}

// name gives the file of this rank its name. Rank 0 writes the index before.
func (e *exporting) name(context.Context) error {
	if e.rank == 0 {
		if err := e.writeIndex(); err != nil {
			return err
		}
	}
	if len(e.plan.tensors[e.rank]) == 0 {
		return nil
	}
	return os.Rename(e.temporary(e.rank), filepath.Join(e.dir, e.fileOf(e.rank)))
}

func (e *exporting) writeIndex() error {
	f, err := os.OpenFile(e.temporary("index"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(e.plan.index(e.fileOf))
	return errors.Join(err, f.Sync(), f.Close())
}

// commit gives the index its name on rank 0, if all files are there, and removes those of the older model.
func (e *exporting) commit(context.Context) error {
	if e.rank != 0 {
		return nil
	}
	for _, owner := range e.plan.owners {
		if _, err := os.Stat(filepath.Join(e.dir, e.fileOf(owner))); err != nil {
			return failed(owner, fmt.Errorf("its file is not in the directory of rank 0: %w", err))
		}
	}
	old, files := e.indexed(), map[string]bool{}
	if err := os.Rename(e.temporary("index"), e.index()); err != nil {
		return err
	}
	for _, owner := range e.plan.owners {
		files[e.fileOf(owner)] = true
	}
	err := syncDir(e.dir)
	for name := range old {
		if !files[name] && filepath.Base(name) == name && strings.HasSuffix(name, ".safetensors") {
			_ = os.Remove(filepath.Join(e.dir, name)) // the model is complete with or without it
		}
	}
	return err
}

// discard removes all files of this export, unless they are a model. Rank 0 cannot rename the index once it
// is removed here, even if it was stopped and goes on later.
func (e *exporting) discard() {
	_ = os.Remove(e.temporary("index"))
	if e.indexed()[e.fileOf(e.plan.owners[0])] {
		return
	}
	_ = os.Remove(e.temporary(e.rank))
	for _, owner := range e.plan.owners { // some may have died
		_ = os.Remove(filepath.Join(e.dir, e.fileOf(owner)))
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// exportList is what a rank has, or why it has nothing.
type exportList struct {
	Parts    []exportPart
	Metadata map[string]string // of rank 0
	Token    string            // of rank 0
	Err      string
}

// exportPart is a part of a tensor.
type exportPart struct {
	Name         string
	DType        tensor.DType
	Start, Shape []int
	Whole        []int  // the shape of the tensor
	Same         string // an earlier name of this part, which is in the same memory
}

func (p *exportPart) box() blocks.Box { return blocks.Box{Start: p.Start, Shape: p.Shape} }

func (p *exportPart) sameAs(x exportPart) bool {
	return p.DType == x.DType && slices.Equal(p.Start, x.Start) && slices.Equal(p.Shape, x.Shape) && slices.Equal(p.Whole, x.Whole)
}

// listParts lists parts by name, and checks them.
func listParts(parts map[string]Part) (list []exportPart, err error) {
	first := map[*byte]int{} // indices in the list of parts, by their memory
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		p := parts[name]
		if p.Tensor == nil {
			return nil, named(name, fmt.Errorf("it is nil: %w", pgroup.ErrInvalid))
		}
		if err := p.Check(); err != nil {
			return nil, named(name, err)
		}
		x := exportPart{Name: name, DType: p.DType, Start: p.Start, Shape: p.Tensor.Shape, Whole: p.Shape}
		if p.Start == nil && p.Shape == nil {
			x.Start, x.Whole = make([]int, len(x.Shape)), x.Shape
		}
		if err := x.box().Check(len(x.Whole)); err != nil {
			return nil, named(name, fmt.Errorf("%w: %w", err, pgroup.ErrInvalid))
		}
		if len(p.Data) > 0 {
			if i, ok := first[&p.Data[0]]; !ok {
				first[&p.Data[0]] = len(list)
			} else if list[i].sameAs(x) {
				x.Same = list[i].Name
			}
		}
		list = append(list, x)
	}
	return list, nil
}
