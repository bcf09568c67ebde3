package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// job describes a running "muster run" of this user on this host. While it runs, it has a file in
// jobsDir and holds a lock on it. The kernel releases the lock when the process ends, for whatever
// reason. With these files who, top and page find the store of a job.
type job struct {
	PID     int       `json:"pid"`
	URL     string    `json:"url"`
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
}

func (j *job) String() string {
	return fmt.Sprintf("%s (pid %d, for %s): %s", redacted(j.URL), j.PID, ago(time.Since(j.Started).Seconds()), printable(strings.Join(j.Command, " ")))
}

// jobsDir returns a directory that only this user can write to, and creates it if necessary.
func jobsDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "muster-"+strconv.Itoa(os.Getuid()))
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		dir = filepath.Join(run, "muster")
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s is not a directory of this user alone", dir)
	}
	return dir, nil
}

// announce creates the file of a job. If it cannot, the job runs, but other commands do not find it
// by themselves.
func announce(j *job) (end func(), err error) {
	dir, err := jobsDir()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return nil, err
	}
	path := f.Name()
	end = func() {
		_ = os.Remove(path)
		_ = f.Close()
	}
	b, err := json.Marshal(j)
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if named := filepath.Join(dir, rand.Text()+".json"); err == nil {
		if err = os.Rename(path, named); err == nil {
			path = named
		}
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// jobs returns the running jobs, oldest first. It removes the files of jobs that have ended.
func jobs() []job {
	dir, err := jobsDir()
	if err != nil {
		return nil
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	var all []job
	for _, path := range paths {
		if j, ok := jobAt(path); ok {
			all = append(all, j)
		}
	}
	slices.SortFunc(all, func(a, b job) int { return a.Started.Compare(b.Started) })
	return all
}

func jobAt(path string) (j job, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return j, false
	}
	defer f.Close()
	// unlocked: the job has ended
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		_ = os.Remove(path)
		return j, false
	}
	return j, json.NewDecoder(f).Decode(&j) == nil
}

// find sets the store of r to that of the running job, unless a store was named. If several jobs
// run, it returns the remotes of all.
func (r *remote) find() ([]*remote, error) {
	if r.url != "" || os.Getenv("MUSTER_STORE") != "" {
		return []*remote{r}, nil
	}
	var all []*remote
	for _, j := range jobs() {
		own := *r
		own.url, own.job = j.URL, &j
		all = append(all, &own)
	}
	if len(all) == 0 {
		return nil, &exit{code: exitUsage, text: `which store? Give --store muster://host:port or set MUSTER_STORE; no "muster run" of this user runs here`}
	}
	return all, nil
}

// findOne is like find, for a command that works on one store.
func (r *remote) findOne() error {
	all, err := r.find()
	if err != nil {
		return err
	}
	if len(all) == 1 {
		*r = *all[0]
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "which store? %d jobs run here; give --store:", len(all))
	for _, r := range all {
		text.WriteString("\n  " + r.job.String())
	}
	return &exit{code: exitUsage, text: text.String()}
}
