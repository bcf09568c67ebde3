package doctor

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// launcher describes the variables by which a launcher passes ranks to its processes.
type launcher struct {
	name, rank, size     string
	localRank, localSize string
}

// launchers are in the order in which pgroup.FromEnv uses them.
var launchers = []launcher{
	{"torchrun or muster run", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
	{"a Kubernetes indexed job", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "", ""},
}

// launched reports whether a launcher has set a rank.
func (d *Doctor) launched() bool { return len(d.present()) > 0 }

func (d *Doctor) present() (all []launcher) {
	for _, l := range launchers {
		if d.System.Getenv(l.rank) != "" {
			all = append(all, l)
		}
	}
	return all
}

// environment checks for variables that contradict each other.
func (d *Doctor) environment(_ context.Context, p *process) (fs []Finding) {
	present := d.present()
	if len(present) == 0 {
		return d.unlaunched()
	}
	for _, l := range present {
		fs = append(fs, d.numbers(l)...)
	}
	fs = append(fs, d.contradictions(present)...)
	if p.wrong != nil && len(fs) == 0 {
		fs = append(fs, problem(strings.TrimPrefix(p.wrong.Error(), "pgroup: "), "set it as the launcher should have; \"muster help environment\" lists the variables"))
	}
	if p.config != nil {
		if p.config.Address == "" {
			return append(fs, ok("%s: a single rank", present[0].name))
		}
		fs = append(fs, ok("%s: %s, which meet at %s", present[0].name, count(p.config.Size, "rank"), withoutPassword(p.config.Address)))
	}
	return fs
}

// withoutPassword removes the password from an address, because reports may be published.
func withoutPassword(address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		return u.Redacted()
	}
	return address
}

func (d *Doctor) unlaunched() []Finding {
	if d.System.Getenv("WORLD_SIZE") != "" {
		return []Finding{warning("WORLD_SIZE is set and RANK is not: no launcher has started this process", "start it with muster run, torchrun, mpirun or srun, or unset WORLD_SIZE")}
	}
	return []Finding{ok("no launcher has started this process, so it is examined alone; with \"muster run -n 4 -- muster doctor\", torchrun, mpirun or srun the ranks try each other too")}
}

// number returns the number in a variable; ok is false if it is not set or not a number.
func (d *Doctor) number(name string) (n int, ok bool) {
	n, err := strconv.Atoi(d.System.Getenv(name))
	return n, err == nil && name != ""
}

// numbers checks the numbers that one launcher has set.
func (d *Doctor) numbers(l launcher) (fs []Finding) {
	for _, name := range []string{l.rank, l.size, l.localRank, l.localSize} {
		v := d.System.Getenv(name)
		if name == "" || v == "" {
			continue
		}
		if n, err := strconv.Atoi(v); err != nil || n < 0 {
			fs = append(fs, problem(fmt.Sprintf("%s is %q, which is not an integer ≥ 0", name, v), "let the launcher set it"))
		}
	}
	for _, pair := range [][2]string{{l.rank, l.size}, {l.localRank, l.localSize}} {
		rank, isRank := d.number(pair[0])
		size, isSize := d.number(pair[1])
		if isRank && isSize && rank >= size {
			fs = append(fs, problem(fmt.Sprintf("%s is %d, and %s is %d: ranks are numbered from 0 to %d", pair[0], rank, pair[1], size, size-1),
				fmt.Sprintf("%s counts from 0; or %s is of another job, and left in the environment: unset it", pair[0], pair[1])))
		}
	}
	local, isLocal := d.number(l.localSize)
	if size, isSize := d.number(l.size); isLocal && isSize && local > size {
		fs = append(fs, problem(fmt.Sprintf("%s is %d, more than %s, which is %d", l.localSize, local, l.size, size), "one of them is of another job: unset both, and let the launcher set them"))
	}
	return fs
}

// contradictions checks for contradictions among launchers and among addresses.
func (d *Doctor) contradictions(present []launcher) (fs []Finding) {
	env := d.System.Getenv
	// torchrun inside Slurm correctly sets other numbers than Slurm
	inner := env("TORCHELASTIC_RUN_ID") != "" || env("MUSTER_RUN") != ""
	for _, other := range present[1:] {
		first := present[0]
		if a, b := env(first.rank), env(other.rank); a != b && !inner {
			fs = append(fs, warning(fmt.Sprintf("%s is %s (%s) and %s is %s (%s): the first one counts", first.rank, a, first.name, other.rank, b, other.name),
				fmt.Sprintf("unset %s if it is left over from elsewhere", first.rank)))
		}
	}
	store, master := env("MUSTER_STORE"), env("MASTER_ADDR")
	if store != "" && master != "" && len(hostsOf(store)) > 0 && hostsOf(store)[0] != strings.Trim(master, "[]") {
		fs = append(fs, warning(fmt.Sprintf("MUSTER_STORE is at %s and MASTER_ADDR is %s: the store counts", hostsOf(store)[0], master), "unset the one that is not meant"))
	}
	return fs
}

// severalHosts reports whether according to the launcher there are ranks on other hosts.
func (d *Doctor) severalHosts() bool {
	for _, l := range d.present() {
		local, isLocal := d.number(l.localSize)
		if size, isSize := d.number(l.size); isLocal && isSize && local < size {
			return true
		}
	}
	nodes, isSet := d.number("SLURM_NNODES")
	return isSet && nodes > 1
}
