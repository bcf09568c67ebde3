// Package launcher has the environment variables with which launchers tell processes their ranks.
package launcher

// Launcher is a program that starts ranks, and the variables that it sets for each of them.
type Launcher struct {
	Name string
	Rank string   // set by this launcher, and by none that comes before it in All
	Size []string // the number of ranks; the first that is set counts
	Here string   // the number of ranks on this host; "" if it sets none
}

// The launchers that are known.
var (
	Torchrun   = Launcher{"torchrun", "RANK", []string{"WORLD_SIZE"}, "LOCAL_WORLD_SIZE"}
	OpenMPI    = Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", []string{"OMPI_COMM_WORLD_SIZE"}, "OMPI_COMM_WORLD_LOCAL_SIZE"}
	Slurm      = Launcher{"Slurm", "SLURM_PROCID", []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, ""}
	Kubernetes = Launcher{"a Kubernetes indexed job", "JOB_COMPLETION_INDEX", []string{"WORLD_SIZE"}, ""}
)

// All has the innermost first: a torchrun that Slurm started takes precedence.
var All = []Launcher{Torchrun, OpenMPI, Slurm, Kubernetes}
