package pgroup

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

// slurmRun returns the id of this job step: one allocation may run several steps at a time.
func slurmRun() string {
	job := cmp.Or(os.Getenv("SLURM_JOB_ID"), os.Getenv("SLURM_JOBID"))
	if step := cmp.Or(os.Getenv("SLURM_STEP_ID"), os.Getenv("SLURM_STEPID")); step != "" {
		return job + "." + step
	}
	return job
}

// slurmAddress returns a port of the step's first node, where rank 0 runs.
func slurmAddress(e *env) string {
	host := os.Getenv("MASTER_ADDR")
	if host == "" {
		name, list := e.first("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
		var err error
		if host, err = firstHost(list); err != nil {
			e.fail("%s is %q: %v", name, list, err)
		}
	}
	run := slurmRun()
	if run == "" && os.Getenv("MASTER_PORT") == "" {
		e.missing("SLURM_JOB_ID")
	}
	if e.err != nil {
		return ""
	}
	return e.derivedAddress(host, run)
}

// firstHost returns the first host of a list in Slurm's notation: "login,node[03-07,9]-ib,…" has
// ranges in brackets; a name may have several, "rack[0-1]n[04-05]".
func firstHost(list string) (string, error) {
	var host strings.Builder
	for rest := list; rest != ""; {
		end := strings.IndexAny(rest, "[],")
		if end < 0 {
			end = len(rest)
		}
		host.WriteString(rest[:end])
		if end == len(rest) || rest[end] == ',' {
			break
		}
		if rest[end] == ']' {
			return "", fmt.Errorf("a ] without a [")
		}
		rest = rest[end+1:]
		closing := strings.IndexByte(rest, ']')
		if closing < 0 {
			return "", fmt.Errorf("a [ without a ]")
		}
		first := rest[:strings.IndexAny(rest, ",-]")]
		if first == "" || strings.Trim(first, "0123456789") != "" {
			return "", fmt.Errorf("[%s] is not a range of numbers", rest[:closing])
		}
		host.WriteString(first)
		rest = rest[closing+1:]
	}
	if host.Len() == 0 {
		return "", fmt.Errorf("it has no host")
	}
	return host.String(), nil
}
