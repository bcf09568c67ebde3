package doctor

import (
	"slices"
	"strconv"

	"github.com/muster-pg/muster/internal/launcher"
)

// launched reports whether a launcher has set a rank.
func (d *Doctor) launched() bool { return len(d.present()) > 0 }

func (d *Doctor) present() (all []launcher.Launcher) {
	for _, l := range launcher.All {
		if d.System.Getenv(l.Rank) != "" {
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
		local, isLocal := d.number(l.Here)
		if isLocal && slices.ContainsFunc(l.Size, func(name string) bool { size, ok := d.number(name); return ok && local < size }) {
			return true
		}
	}
	nodes, isSet := d.number("SLURM_NNODES")
	return isSet && nodes > 1
}
