package doctor

import (
	"context"
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

// environment reports what this process is by its environment.
func (d *Doctor) environment(_ context.Context, p *process) []Finding {
	switch present := d.present(); {
	case len(present) == 0:
		return []Finding{ok("checked on this host only: under muster run, torchrun, mpirun or srun the ranks test the connections between them too")}
	case p.wrong != nil:
		return []Finding{problem(strings.TrimPrefix(p.wrong.Error(), "pgroup: "), "set it as the launcher should have; \"muster help environment\" lists the variables")}
	case p.config.Address == "":
		return []Finding{ok("%s: a single rank", present[0].name)}
	default:
		return []Finding{ok("%s: %s, which meet at %s", present[0].name, count(p.config.Size, "rank"), withoutPassword(p.config.Address))}
	}
}

// withoutPassword removes the password from an address, because reports may be published.
func withoutPassword(address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		return u.Redacted()
	}
	return address
}

// number returns the number in a variable; ok is false if it is not set or not a number.
func (d *Doctor) number(name string) (n int, ok bool) {
	n, err := strconv.Atoi(d.System.Getenv(name))
	return n, err == nil && name != ""
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
