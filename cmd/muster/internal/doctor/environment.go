package doctor

import "strconv"

// launcher describes the variables by which a launcher passes ranks to its processes.
type launcher struct{ rank, size, localSize string }

// launchers are in the order in which pgroup.FromEnv uses them.
var launchers = []launcher{
	{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"SLURM_PROCID", "SLURM_NTASKS", ""},
	{"JOB_COMPLETION_INDEX", "WORLD_SIZE", ""},
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
