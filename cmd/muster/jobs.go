package main

import (
	"bytes"
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

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
)

// job describes a running "muster run". While it runs, it has a file in jobsDir, for this user on
// this host, and holds a lock on it. The kernel releases the lock when the process ends, for whatever
// reason. With these files ps finds the jobs, and who and page their store. The store has the same
// under a lease, for ps.
type job struct {
	Job     string    `json:"job"`
	Node    string    `json:"node"`
	PID     int       `json:"pid"`
	URL     string    `json:"url,omitempty"` // not in the store: other hosts may have another one
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Ranks   int       `json:"ranks"` // processes on this node
	agent.Status
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
func announce(j *job) (*jobFile, error) {
	dir, err := jobsDir()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return nil, err
	}
	file := &jobFile{f: f, path: f.Name()}
	err = file.write(j)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if named := filepath.Join(dir, rand.Text()+".json"); err == nil {
		if err = os.Rename(file.path, named); err == nil {
			file.path = named
		}
	}
	if err != nil {
		file.remove()
		return nil, err
	}
	return file, nil
}

// jobFile is the file of a job.
type jobFile struct {
	f    *os.File
	path string
	size int
}

// write replaces the contents, in place since the lock is on this file. Spaces fill the rest of what
// was longer before. A reader that sees half of it reads again.
func (j *jobFile) write(what *job) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	b = append(b, bytes.Repeat([]byte(" "), max(0, j.size-len(b)))...)
	j.size = len(b)
	_, err = j.f.WriteAt(b, 0)
	return err
}

func (j *jobFile) remove() {
	_ = os.Remove(j.path)
	_ = j.f.Close()
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
	for range 10 {
		b, err := os.ReadFile(path)
		j = job{}
		if err == nil && json.Unmarshal(b, &j) == nil {
			return j, true
		}
	}
	return j, false
}

// find returns the store that --store names, or those of MUSTER_STORE and of the jobs of this host.
func (r *remote) find() ([]*remote, error) {
	if r.url != "" {
		return []*remote{r}, nil
	}
	var all []*remote
	add := func(url, title string) {
		own := *r
		own.url, own.title = url, title
		all = append(all, &own)
	}
	named := os.Getenv("MUSTER_STORE")
	if named != "" {
		add("", redacted(named)+" (MUSTER_STORE)")
	}
	for _, j := range jobs() {
		if j.URL != named {
			add(j.URL, j.String())
		}
	}
	if len(all) == 0 {
		return nil, &exit{code: exitUsage, text: `which store? Give --store muster://host:port or set MUSTER_STORE; no "muster run" of this user runs here`}
	}
	return all, nil
}

// findOne is like find, for a command that works on one store: that of MUSTER_STORE if it is set.
func (r *remote) findOne() error {
	all, err := r.find()
	if err != nil {
		return err
	}
	if len(all) == 1 || all[0].url == "" {
		*r = *all[0]
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "which store? %d jobs run here; give --store:", len(all))
	for _, r := range all {
		text.WriteString("\n  " + r.title)
	}
	return &exit{code: exitUsage, text: text.String()}
}
