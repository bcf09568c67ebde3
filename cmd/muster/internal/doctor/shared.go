package doctor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// soonSeen is the delay up to which a new file is visible soon enough.
const soonSeen = time.Second

// sharedDirectory checks which of rank 0's changes in --dir the other ranks see. Every rank runs
// all steps, whatever it finds.
func (w *groupCheck) sharedDirectory(ctx context.Context) error {
	for rank, c := range w.infos {
		if (c.Dir == "") != (w.infos[0].Dir == "") {
			if w.group.Rank() == 0 {
				w.say("dir", problem(fmt.Sprintf("rank 0 has --dir %q and rank %d has %q", w.infos[0].Dir, rank, c.Dir), "give it to all ranks, or to none"))
			}
			return nil
		}
	}
	if w.Dir == "" {
		return nil
	}
	b := &sharedDirCheck{groupCheck: w, path: filepath.Join(w.Dir, "muster-doctor-"+w.infos[0].Nonce)}
	before := len(w.found)
	defer b.remove(ctx)
	for _, step := range []func(){b.ask, b.create, b.look, b.overwrite, b.reread, b.race, b.settle} {
		if !b.hung {
			b.hung = !within(ctx, w.longest(), step)
		}
		if err := w.group.Barrier(ctx); err != nil {
			return err
		}
	}
	b.judge()
	if len(w.found) == before && w.group.Rank() != 0 {
		w.find("dir", ok("what rank 0 writes into %s is seen at once, and whole", w.Dir))
	}
	return nil
}

// longest is the timeout of a step. A loop inside a step waits for at most w.answerTimeout().
func (w *groupCheck) longest() time.Duration { return w.answerTimeout() + w.answerTimeout()/2 }

// sharedDirCheck is the state of the shared directory check. Rank 0 writes files, and the other
// ranks read them. A step that hangs keeps its goroutine, which may write to the fields later. So
// after such a step no further steps run, and the fields are not evaluated.
type sharedDirCheck struct {
	*groupCheck
	path string
	hung bool

	writes error         // errors of rank 0
	seen   time.Duration // the delay until the new file was visible; < 0: never
	listed bool          // the new file was never visible, but it was in the directory's list
	stale  bool          // a file that was overwritten still had its old content
	torn   bool          // a file that was replaced had partial content
	gone   error         // the error of a file that was replaced
	// the last replacement was seen; on rank 0: it will be written next
	last bool

	version byte // on rank 0: of the replaced file
}

func (b *sharedDirCheck) writer() bool { return b.group.Rank() == 0 }

func (b *sharedDirCheck) note(err error) {
	if b.writes == nil {
		b.writes = err
	}
}

// ask looks up a file that does not exist yet, so that the client of the file system caches that.
// Some clients keep this for long.
func (b *sharedDirCheck) ask() {
	if !b.writer() {
		_, _ = os.Stat(b.path)
		return
	}
	b.note(write(b.path+".over", content(1)))
	b.note(replace(b.path+".race", content(1)))
}

func (b *sharedDirCheck) create() {
	if b.writer() {
		b.note(write(b.path, content(1)))
	} else {
		_, _ = os.ReadFile(b.path + ".over") // from now on names and contents are cached here
		_, _ = os.ReadFile(b.path + ".race")
	}
}

// look waits until the new file is visible.
func (b *sharedDirCheck) look() {
	if b.writer() {
		return
	}
	began := time.Now()
	for time.Since(began) < b.answerTimeout() {
		if _, err := os.Stat(b.path); err == nil {
			b.seen = time.Since(began)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.seen = -1
	entries, _ := os.ReadDir(b.Dir)
	b.listed = slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == filepath.Base(b.path) })
}

func (b *sharedDirCheck) overwrite() {
	if b.writer() {
		b.note(write(b.path+".over", content(2)))
	}
}

// reread opens a file again after it was overwritten and closed. Its new content must be visible
// then.
func (b *sharedDirCheck) reread() {
	if !b.writer() {
		got, err := os.ReadFile(b.path + ".over")
		b.stale = err == nil && bytes.Equal(got, content(1))
	}
}

const replaced = 20 // maximum number of replacements

// race reads a file while rank 0 replaces it, for half of the timeout at most.
func (b *sharedDirCheck) race() {
	for began := time.Now(); time.Since(began) < b.answerTimeout()/2 && !b.last && !b.elsewhere(); time.Sleep(time.Millisecond) {
		if !b.writer() {
			b.readRaced()
			continue
		}
		b.version++
		b.last = b.version == replaced-1
		b.note(replace(b.path+".race", content(b.version)))
	}
	if b.writer() {
		b.note(replace(b.path+".race", content(replaced)))
	}
}

// settle waits for the last version, which exists now.
func (b *sharedDirCheck) settle() {
	for began := time.Now(); !b.writer() && time.Since(began) < b.answerTimeout() && !b.last && !b.elsewhere(); time.Sleep(10 * time.Millisecond) {
		b.readRaced()
	}
}

// elsewhere reports whether this is not rank 0's directory.
func (b *sharedDirCheck) elsewhere() bool { return b.seen < 0 && !b.listed }

func (b *sharedDirCheck) readRaced() {
	got, err := os.ReadFile(b.path + ".race")
	switch {
	case err != nil:
		b.gone = err
	case len(got) == 0 || !bytes.Equal(got, content(got[0])):
		b.torn = true
	default:
		b.last = got[0] == replaced
	}
}

// judge turns the results of the steps into findings.
func (b *sharedDirCheck) judge() {
	switch {
	case b.hung:
		b.find("dir", problem(fmt.Sprintf("an operation in %s did not end within %v", b.Dir, b.longest()), "the server of that file system does not answer: programs there hang, and cannot be interrupted"))
	case b.writer() && b.writes != nil:
		b.find("dir", problem(fmt.Sprintf("rank 0 cannot write into %s: %s", b.Dir, failure(b.writes)), "is it mounted read-only, full, or another user's?"))
	case !b.writer() && b.elsewhere():
		b.find("dir", problem(fmt.Sprintf("what rank 0 writes into %s is not there", b.Dir), "it is another directory on that host: mount the same file system on all hosts"))
	case !b.writer():
		b.judgeReader()
	}
}

func (b *sharedDirCheck) judgeReader() {
	if b.seen < 0 || b.seen > soonSeen {
		b.find("dir", warning(fmt.Sprintf("a file that was asked for before it was there is not seen in %s for more than %v, though it is in the list", b.Dir, min(b.answerTimeout(), soonSeen)),
			"the client remembers that there was none: mount with lookupcache=positive (NFS), or wait by listing the directory, as package nfsws does"))
	}
	if b.stale {
		b.find("dir", problem("a file that was overwritten and closed in "+b.Dir+" is opened with its old content", "mount without nocto, and do not overwrite: write a new name, as package nfsws does"))
	}
	if b.torn {
		b.find("dir", problem("a file that was replaced by a rename in "+b.Dir+" was read in part", "renames are not atomic there: use another file system for what others read"))
	}
	if b.gone != nil {
		b.find("dir", warning(fmt.Sprintf("a file that was replaced by a rename in %s could not be read at times: %s", b.Dir, innermost(b.gone)), "open it again, and give each version a name of its own, as package nfsws does"))
	}
	if !b.last {
		b.find("dir", warning(fmt.Sprintf("the new version of a file that was replaced in %s is not seen within %v", b.Dir, b.answerTimeout()), "the client remembers names (acdirmax of NFS): give each version a name of its own, as package nfsws does"))
	}
}

// remove removes all files.
func (b *sharedDirCheck) remove(ctx context.Context) {
	if !b.writer() {
		return
	}
	within(ctx, b.answerTimeout(), func() {
		for _, suffix := range []string{"", ".over", ".race", ".race.part"} {
			_ = os.Remove(b.path + suffix)
		}
	})
}
