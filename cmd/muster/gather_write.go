package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-pg/muster/tensor/checkpoint"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// How gather writes. All files are complete, and synced, as parts before the first gets its name, and an
// index gets its name last. Parts keep their names until all files have theirs, so that a gather that was
// killed at any time has all that is needed to go on. What has been synced is noted in a state file, from
// which the same command with the same, unchanged inputs goes on: the names of these files have a digest of
// both. A lock on the state file keeps a second such process away.

// gathered is what gather writes.
type gathered struct {
	set   *checkpoint.Set
	dir   string
	files []gatheredFile
	index bool // whether they have an index
	force bool
	log   io.Writer
	total int64
}

// gatheredFile is one file.
type gatheredFile struct {
	name    string
	header  []byte
	tensors []string // in their order; the index of all files has none
	size    int64
}

// gatheredState is how far the files are: those before File are complete, and of that so many bytes.
type gatheredState struct {
	File  int
	Bytes int64
}

// syncPause is the least time between two syncs of what has been written. It is at least as long as the
// last one took.
const syncPause = 20 * time.Millisecond

// write writes OUT, and returns its size.
func (o *merging) write(ctx context.Context, set *checkpoint.Set) (int64, error) {
	j := &gathered{set: set, force: o.force, log: o.log}
	if err := j.plan(o); err != nil {
		return 0, err
	}
	if o.shardSize > 0 {
		if err := os.MkdirAll(o.out, 0o777); err != nil {
			return 0, err
		}
	}
	state, err := j.open()
	if err != nil {
		return 0, err
	}
	defer state.Close()
	if err := j.distinct(o, state); err != nil {
		if state.gatheredState == (gatheredState{}) {
			state.discard()
		}
		return 0, err
	}
	if err := j.writeAll(ctx, state); err != nil {
		if _, signal := errors.AsType[signalled](context.Cause(ctx)); !signal {
			state.discard()
		}
		return 0, err
	}
	return j.total, j.nameAll(state)
}

// plan decides which tensors are in which file.
func (j *gathered) plan(o *merging) error {
	metadata := j.set.Metadata
	if j.set.Saved {
		metadata = map[string]string{"format": "pt"} // what HuggingFace's readers expect of PyTorch's tensors
	}
	infos, size := map[string]safetensors.Info{}, int64(0)
	var parts []map[string]safetensors.Info
	for _, name := range j.set.Names() {
		info, _ := j.set.Info(name)
		n := info.End
		if o.shardSize > 0 && len(infos) > 0 && size+n > int64(o.shardSize) {
			parts = append(parts, infos)
			infos, size = map[string]safetensors.Info{}, 0
		}
		infos[name] = info
		size += n
	}
	parts = append(parts, infos)
	j.dir, j.index = filepath.Dir(o.out), o.shardSize > 0
	if j.index {
		j.dir = o.out
	}
	for i, infos := range parts {
		name := filepath.Base(o.out)
		if j.index {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(parts))
		}
		var header bytes.Buffer
		w, err := safetensors.NewWriter(&header, infos, metadata)
		if err != nil {
			return err
		}
		j.files = append(j.files, gatheredFile{name, header.Bytes(), w.Names(), w.Header().Size()})
		j.total += w.Header().Size()
	}
	if !j.index {
		return nil
	}
	index := indexOf(j.files)
	j.files = append(j.files, gatheredFile{name: safetensors.IndexName, header: index, size: int64(len(index))})
	return nil
}

// partial is the files that are not complete.
type partial struct {
	*os.File // the state
	gatheredState
	path, prefix string
	files        int
}

// open opens the files of an earlier process, or new ones.
func (j *gathered) open() (*partial, error) {
	digest := sha256.New()
	for _, f := range j.files {
		_, _ = fmt.Fprintf(digest, "%q %x\n", f.name, f.header)
	}
	for path, version := range j.set.Files() {
		path, _ = filepath.Abs(path)
		_, _ = fmt.Fprintf(digest, "%q %s\n", path, version)
	}
	s := &partial{files: len(j.files), prefix: filepath.Join(j.dir, ".muster-"+hex.EncodeToString(digest.Sum(nil)[:8]))}
	s.path = s.prefix + ".state"
	first := filepath.Join(j.dir, j.files[0].name)
	for {
		var err error
		if s.File, err = os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o666); err != nil {
			return nil, &fs.PathError{Op: "create", Path: first, Err: cause(err)}
		}
		if err := syscall.Flock(int(s.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
			_ = s.Close()
			return nil, fmt.Errorf("%s is being written by another process", first)
		}
		if s.isFile(s.path) {
			break
		}
		_ = s.Close() // another process has removed it in between
	}
	if json.NewDecoder(s.File).Decode(&s.gatheredState) != nil || !j.valid(s.gatheredState) {
		s.gatheredState = gatheredState{}
	}
	return s, nil
}

// isFile reports whether the state is the file at a path.
func (s *partial) isFile(path string) bool {
	mine, err := s.Stat()
	there, also := os.Lstat(path)
	return err == nil && also == nil && os.SameFile(mine, there)
}

func (j *gathered) valid(s gatheredState) bool {
	if s.File < 0 || s.File > len(j.files) || s.Bytes < 0 {
		return false
	}
	return s.Bytes == 0 || s.File < len(j.files) && s.Bytes <= j.files[s.File].size
}

// hasPart reports whether the part of a file is there, and whole.
func (j *gathered) hasPart(s *partial, i int) bool {
	st, err := os.Lstat(s.part(i))
	return err == nil && st.Mode().IsRegular() && st.Size() == j.files[i].size
}

func (s *partial) part(i int) string { return fmt.Sprintf("%s-%d.part", s.prefix, i+1) }

// note notes how far the files are. The text is of one length, so that it replaces the one before.
func (s *partial) note(file int, n int64) error {
	s.gatheredState = gatheredState{file, n}
	text, err := json.Marshal(s.gatheredState)
	if err == nil {
		_, err = s.WriteAt(append(text, bytes.Repeat([]byte(" "), 64-len(text))...), 0)
	}
	return err
}

// discard removes the state, and all parts: without it they are of no use.
func (s *partial) discard() {
	_ = os.Remove(s.path)
	for i := range s.files {
		_ = os.Remove(s.part(i))
	}
}

// distinct rejects files that must not be written.
func (j *gathered) distinct(o *merging, s *partial) error {
	dir, err := os.Stat(j.dir)
	if err != nil {
		return err
	}
	for i, f := range j.files {
		path := filepath.Join(j.dir, f.name)
		if st, err := os.Stat(path); err == nil {
			if st.IsDir() {
				return &exit{code: exitFailed, text: path + " is a directory: name a file in it, or set --shard-size"}
			}
			for in := range j.set.Files() {
				if of, err := os.Stat(in); err == nil && os.SameFile(st, of) {
					return &exit{code: exitFailed, text: fmt.Sprintf("-o %s: %s is a file to be read: name another one", o.out, path)}
				}
			}
		}
		if st, err := os.Lstat(path); err == nil && !j.force && !sameFile(st, s.part(i)) {
			return alreadyThere(path)
		}
	}
	if _, err := os.Lstat(filepath.Join(j.dir, "model.safetensors")); err == nil && j.index {
		return &exit{code: exitFailed, text: fmt.Sprintf("-o %s: it has model.safetensors, which readers may take instead: name another directory", o.out)}
	}
	if j.set.Saved {
		return nil // its directory may have other files
	}
	for in := range j.set.Files() {
		if st, err := os.Stat(filepath.Dir(in)); j.index && err == nil && os.SameFile(st, dir) {
			return &exit{code: exitFailed, text: fmt.Sprintf("-o %s: it has files to be read: name another directory", o.out)}
		}
	}
	for _, in := range o.paths {
		if st, err := os.Stat(in); err == nil && os.SameFile(st, dir) {
			return &exit{code: exitFailed, text: fmt.Sprintf("-o %s: that is in %s, which would have other files then: name another directory", o.out, in)}
		}
	}
	return nil
}

func alreadyThere(path string) error {
	return &exit{code: exitFailed, text: path + " is there already: name another file, or add --force to overwrite it"}
}

// sameFile reports whether a path is the file that st describes.
func sameFile(st fs.FileInfo, path string) bool {
	other, err := os.Lstat(path)
	return err == nil && os.SameFile(st, other)
}

// writeAll writes what the files lack.
func (j *gathered) writeAll(ctx context.Context, s *partial) error {
	bar := &progressBar{to: j.log, total: j.total}
	defer bar.end()
	for i, f := range j.files {
		if i < s.gatheredState.File && j.hasPart(s, i) {
			bar.add(f.size)
			continue
		}
		if err := j.writeFile(ctx, s, i, f, bar); err != nil {
			return err
		}
	}
	return j.set.CheckUnchanged()
}

func (j *gathered) writeFile(ctx context.Context, s *partial, i int, f gatheredFile, bar *progressBar) error {
	path := filepath.Join(j.dir, f.name)
	begin := int64(0)
	if st, err := os.Lstat(s.part(i)); err == nil && i == s.gatheredState.File && st.Mode().IsRegular() && st.Size() >= s.Bytes {
		begin = s.Bytes
	}
	flags := os.O_WRONLY | syscall.O_NOFOLLOW
	if begin == 0 { // what is there may have its final name too
		_ = os.Remove(s.part(i))
		flags |= os.O_CREATE | os.O_EXCL
	}
	file, err := os.OpenFile(s.part(i), flags, 0o666)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: cause(err)}
	}
	o := &output{File: file, path: path, part: s.part(i), force: j.force}
	defer o.Close()
	if err := o.Truncate(begin); err != nil {
		return o.wrong("truncate", err)
	}
	if _, err := o.Seek(begin, io.SeekStart); err != nil {
		return o.wrong("seek", err)
	}
	bar.add(begin)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &syncing{output: o, state: s, file: i, bar: bar, cancel: cancel, stop: make(chan struct{}), ended: make(chan struct{})}
	w.at.Store(begin)
	go w.syncOften()
	b := bufio.NewWriterSize(w, 1<<20) // blocks of small tensors
	_, err = b.Write(f.header[min(begin, int64(len(f.header))):])
	if err == nil {
		err = j.set.Stream(ctx, b, f.tensors, max(0, begin-int64(len(f.header))))
	}
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	close(w.stop)
	<-w.ended
	if err != nil {
		return err
	}
	return w.finish()
}

// syncing is a file whose bytes are synced and noted while it is written.
type syncing struct {
	*output
	state *partial
	file  int
	at    atomic.Int64 // how many bytes are written
	bar   *progressBar

	cancel context.CancelCauseFunc // of the writer, if a sync fails
	stop   chan struct{}
	ended  chan struct{} // closed when the goroutine that syncs has ended
}

func (w *syncing) Write(p []byte) (int, error) {
	n, err := w.output.Write(p)
	w.at.Add(int64(n))
	w.bar.add(int64(n))
	return n, err
}

// syncOften syncs and notes what has been written, until stop is closed.
func (w *syncing) syncOften() {
	defer close(w.ended)
	noted, pause := w.at.Load(), syncPause
	for {
		select {
		case <-w.stop:
			return
		case <-time.After(pause):
		}
		at := w.at.Load()
		if at == noted {
			continue
		}
		begin := time.Now()
		err := w.Sync()
		pause = max(syncPause, time.Since(begin))
		if err == nil {
			err = w.state.note(w.file, at)
		}
		if err != nil {
			w.cancel(w.wrong("sync", err))
			return
		}
		noted = at
	}
}

// finish completes the file.
func (w *syncing) finish() error {
	if err := w.Sync(); err != nil {
		return w.wrong("sync", err)
	}
	if err := w.Close(); err != nil { // NFS may report a failed write only now
		return w.wrong("close", err)
	}
	return w.state.note(w.file+1, 0)
}

// nameAll gives all files their names, the index last, and removes the parts and the state.
func (j *gathered) nameAll(s *partial) error {
	if j.index && j.force {
		if err := os.Remove(filepath.Join(j.dir, safetensors.IndexName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // one of other files
		}
	}
	for i, f := range j.files {
		path := filepath.Join(j.dir, f.name)
		if err := nameFile(s.part(i), path, j.force); errors.Is(err, fs.ErrExist) {
			return alreadyThere(path)
		} else if err != nil {
			return &fs.PathError{Op: "name", Path: path, Err: cause(err)}
		}
	}
	if err := syncDirectory(j.dir); err != nil {
		return err
	}
	s.discard()
	return nil
}

// nameFile gives a part another name besides, if the file system has links.
func nameFile(part, path string, force bool) error {
	if st, err := os.Lstat(path); err == nil && sameFile(st, part) {
		return nil // by an earlier process
	}
	link := path
	if force {
		link = part + ".link"
		_ = os.Remove(link)
	}
	err := os.Link(part, link)
	switch {
	case err == nil && force:
		return os.Rename(link, path)
	case err == nil || errors.Is(err, fs.ErrExist):
		return err
	}
	if _, there := os.Lstat(path); force || errors.Is(there, fs.ErrNotExist) {
		return os.Rename(part, path)
	}
	return err
}

// indexOf returns the index of files.
func indexOf(files []gatheredFile) []byte {
	names, size := map[string]string{}, int64(0)
	for _, f := range files {
		size += f.size - int64(len(f.header))
		for _, name := range f.tensors {
			names[name] = f.name
		}
	}
	return safetensors.Index(names, size)
}

// progressBar shows how much is written, on a terminal.
type progressBar struct {
	to          io.Writer
	done, total int64
	shown       int64 // percent
}

func (b *progressBar) add(n int64) {
	b.done += n
	percent := b.done * 100 / max(b.total, 1)
	if !inkOf(b.to) || percent == b.shown {
		return
	}
	b.shown = percent
	const width = 40
	full := int(percent * width / 100)
	_, _ = fmt.Fprintf(b.to, "\r[%s%s] %3d%% of %s", strings.Repeat("#", full), strings.Repeat(" ", width-full), percent, bytesText(b.total))
}

// end removes the bar.
func (b *progressBar) end() {
	if b.shown > 0 {
		_, _ = fmt.Fprint(b.to, "\r\x1b[K")
	}
}
