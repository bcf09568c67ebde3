package gather

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/blocking"
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/pgroup"
)

// jobDir returns the workspace of a job in Options.Dir. Its name contains the group's name and its
// run, so that another job does not mistake this one for an older run. A group without a run has a
// workspace named after the Gatherer, which no other job finds.
func jobDir(dir string, g *pgroup.Group, id uint64) string {
	run := "run-" + url.PathEscape(g.Config().Run)
	if g.Config().Run == "" {
		run = fmt.Sprintf("job-%016x", id)
	}
	name := "group-" + url.PathEscape(g.Name()) + "." + run
	if len(name) > maxFileName {
		name = fmt.Sprintf("group-%x", sha256.Sum256([]byte(name)))
	}
	return filepath.Join(dir, name)
}

// maxFileName is the limit of most file systems.
const maxFileName = 255

// beginFiles runs on rank 0 before the others open the workspace. It begins a generation, which is
// newer than that of a killed run.
func beginFiles(ctx context.Context, dir string, g *pgroup.Group, id uint64) (generation uint64, err error) {
	_, err = blocking.Do(ctx, func() (struct{}, error) {
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			if err := removeLeftovers(ctx, dir); err != nil { // they do no harm
				g.Logger().Warn("gather: cannot remove what killed jobs have left", "dir", dir, "err", err)
			}
			err = nil
		}
		return struct{}{}, err
	})
	if err != nil {
		return 0, err
	}
	return nfsws.Begin(ctx, jobDir(dir, g, id))
}

// openFiles opens the workspace of the job.
func openFiles(ctx context.Context, dir string, g *pgroup.Group, id, generation uint64) (*nfsws.Workspace, error) {
	return nfsws.Open(ctx, jobDir(dir, g, id), g.Rank(), &nfsws.Options{Generation: generation, Accumulate: true, Logger: g.Logger()})
}

// removeDir removes the workspace when the last rank closes.
func (ga *Gatherer) removeDir(ctx context.Context) {
	key := fmt.Sprintf("\x00gather closed/%x", ga.id)
	closed, err := ga.group.Store().Add(ctx, key, 1)
	if err != nil || closed < int64(ga.group.Size()) {
		return
	}
	_, _ = ga.group.Store().Delete(ctx, key)
	_, _ = blocking.Do(ctx, func() (struct{}, error) {
		dir := jobDir(ga.opts.Dir, ga.group, ga.id)
		_ = os.Remove(nfsws.GenerationDir(dir, ga.generation))
		return struct{}{}, os.Remove(dir) // it stays if another attempt of the run has begun
	})
}

// leftoverAge is how long nothing changes in the workspace of a job before another job removes it:
// its ranks were killed.
const leftoverAge = 7 * 24 * time.Hour

// removeLeftovers removes the workspaces of killed jobs in dir.
func removeLeftovers(ctx context.Context, dir string) error {
	names, err := os.ReadDir(dir)
	for _, d := range names {
		if !d.IsDir() || !strings.HasPrefix(d.Name(), "group-") {
			continue
		}
		e := nfsws.RemoveUnused(ctx, filepath.Join(dir, d.Name()), leftoverAge)
		if !errors.Is(e, fs.ErrNotExist) && !errors.Is(e, fs.ErrPermission) { // nor that of another user
			err = cmp.Or(err, e)
		}
	}
	return err
}
