package dataparallel

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/membership"
)

// Environment variables that a launcher of elastic jobs sets.
const (
	envStore   = "MUSTER_STORE"
	envJob     = "MUSTER_JOB"
	envWorker  = "MUSTER_WORKER"
	envElastic = "MUSTER_ELASTIC"
	envLease   = "MUSTER_LEASE"
	envLaunch  = "MUSTER_LAUNCH"
	envUnit    = "MUSTER_UNIT_SIZE"
)

// WorkerFromEnv returns the node of a worker that muster run --elastic, or another launcher, has started
// with these variables:
//
//	MUSTER_STORE    URL of the store
//	MUSTER_JOB      name of the job, the same in all workers
//	MUSTER_WORKER   ID of this worker, unique in the job
//	MUSTER_ELASTIC  MIN:MAX, the fewest and the most workers of a view
//	MUSTER_LEASE    membership.Config.TTL, as 30s; may be empty
//	MUSTER_LAUNCH   membership.Config.Launch; may be empty
//
// If another one is not set, the error matches ErrNoLauncher and names it. A worker of several processes
// (MUSTER_UNIT_SIZE above 1) is refused with membership.ErrInvalid: each would join as the same worker.
func WorkerFromEnv() (*WorkerNode, error) {
	values := map[string]string{}
	var missing []string
	for _, name := range []string{envStore, envJob, envWorker, envElastic} {
		if values[name] = os.Getenv(name); values[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("dataparallel: worker from the environment: %w: %s: start the program with muster run --elastic MIN:MAX, or set them",
			ErrNoLauncher, strings.Join(missing, " and ")+" not set")
	}
	if unit := os.Getenv(envUnit); unit != "" && unit != "1" {
		return nil, fmt.Errorf("dataparallel: worker from the environment: %w: %s is %q, and a WorkerNode is a worker of one process: run without --unit-size", membership.ErrInvalid, envUnit, unit)
	}
	least, most, err := parseElastic(values[envElastic])
	if err != nil {
		return nil, fmt.Errorf("dataparallel: worker from the environment: %w", err)
	}
	w := &WorkerNode{
		Address: values[envStore],
		Worker:  membership.Config{Job: values[envJob], ID: values[envWorker], Min: least, Max: most, Launch: os.Getenv(envLaunch)},
	}
	if lease := os.Getenv(envLease); lease != "" {
		if w.Worker.TTL, err = time.ParseDuration(lease); err != nil || w.Worker.TTL <= 0 {
			return nil, fmt.Errorf("dataparallel: worker from the environment: %w: %s is %q: set a duration, as 30s", membership.ErrInvalid, envLease, lease)
		}
	}
	return w, nil
}

// parseElastic parses MIN:MAX.
func parseElastic(text string) (least, most int, err error) {
	low, high, ok := strings.Cut(text, ":")
	if ok {
		if least, err = strconv.Atoi(low); err == nil {
			most, err = strconv.Atoi(high)
		}
	}
	if !ok || err != nil || least < 1 || most < least {
		return 0, 0, fmt.Errorf("%w: %s is %q: set MIN:MAX, with 1 ≤ MIN ≤ MAX, as in 2:8", membership.ErrInvalid, envElastic, text)
	}
	return least, most, nil
}
