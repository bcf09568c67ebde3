package pgroup

import (
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
)

// Variables that are muster's own. Empty is as good as not set.
const (
	envStore    = "MUSTER_STORE"            // URL of a store that is there
	envName     = "MUSTER_NAME"             // Config.Name
	envRun      = "MUSTER_RUN"              // Config.Run, whatever the launcher says
	envTimeout  = "MUSTER_TIMEOUT"          // Config.Timeout, as "30s"
	envExpiry   = "MUSTER_EXPIRY"           // Config.Expiry, as "1h"
	envLiveness = "MUSTER_LIVENESS_TIMEOUT" // Config.LivenessTimeout, as "30s"
	envHost     = "MUSTER_HOST"             // Config.Host
	envInsecure = "MUSTER_INSECURE"         // Config.Insecure, 1 or 0
	envTrace    = "MUSTER_TRACE"            // Config.TraceDir

	envSecretFile = "MUSTER_SECRET_FILE" // file of Config.Secret
	envTLSCA      = "MUSTER_TLS_CA"      // these three are PEM files, of Config.TLS
	envTLSCert    = "MUSTER_TLS_CERT"
	envTLSKey     = "MUSTER_TLS_KEY"
)

// agentStore is set by torchrun if its agent serves MASTER_PORT.
const agentStore = "TORCHELASTIC_USE_AGENT_STORE"

// launcher is how a program that starts ranks tells each of them who it is.
type launcher struct {
	name    string
	rank    string            // is set by this launcher, and by no other that comes before
	size    []string          // the first that is set counts
	run     func() string     // the run's id
	address func(*env) string // where to meet, if MASTER_ADDR does not say
}

// launchers, the innermost first: whoever starts torchrun under Slurm means torchrun.
var launchers = []launcher{
	{name: "torchrun", rank: "RANK", size: []string{"WORLD_SIZE"}, run: envRunID("TORCHELASTIC_RUN_ID")},
	{
		name: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", size: []string{"OMPI_COMM_WORLD_SIZE"},
		run: envRunID("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"), address: openMPIAddress,
	},
	{name: "Slurm", rank: "SLURM_PROCID", size: []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, run: slurmRun, address: slurmAddress},
	{name: "a Kubernetes indexed job", rank: "JOB_COMPLETION_INDEX", size: []string{"WORLD_SIZE"}, run: func() string { return "" }},
}

// FromEnv is the Config that a launcher has set in the environment: torchrun or muster run (RANK), Open MPI
// (OMPI_COMM_WORLD_RANK), Slurm (SLURM_PROCID), or a Kubernetes indexed job (JOB_COMPLETION_INDEX, with WORLD_SIZE set in its manifest); the first of
// them counts. The group meets at MASTER_ADDR and MASTER_PORT, or at the store that MUSTER_STORE names. Under Slurm the first node of the step and
// a port made of the job's id will do, under Open MPI on one node its loopback. Where torchrun's agent listens on MASTER_PORT, the next
// port is used. MUSTER_NAME, MUSTER_RUN, MUSTER_TIMEOUT, MUSTER_EXPIRY, MUSTER_LIVENESS_TIMEOUT, MUSTER_HOST and MUSTER_INSECURE set the
// fields of those names, and MUSTER_TRACE sets TraceDir. MUSTER_SECRET_FILE names the file that Secret is read from, and MUSTER_TLS_CA, MUSTER_TLS_CERT and
// MUSTER_TLS_KEY those of TLS; with a CA and without a secret, rank 0 requires certificates. An error says which variable is missing or malformed, and whose it is.
func FromEnv() (Config, error) {
	for _, l := range launchers {
		if os.Getenv(l.rank) != "" {
			e := env{launcher: l.name}
			c := e.config(l)
			return c, e.err
		}
	}
	var known []string
	for _, l := range launchers {
		known = append(known, fmt.Sprintf("%s (%s)", l.rank, l.name))
	}
	return Config{}, invalid("no launcher's environment: none of %s is set; \"muster run -n 4 -- PROGRAM\" sets it, or give rank and size in the program", strings.Join(known, ", "))
}

// env reads variables; its first error stays.
type env struct {
	launcher string
	err      error
}

func (e *env) config(l launcher) Config {
	c := Config{
		Rank: e.number(l.rank), Size: e.number(l.size...), Name: os.Getenv(envName), Host: os.Getenv(envHost),
		Timeout: e.duration(envTimeout), Expiry: e.duration(envExpiry), Insecure: e.bool(envInsecure),
		LivenessTimeout: e.duration(envLiveness), TraceDir: os.Getenv(envTrace),
	}
	e.secure(&c)
	if c.Run = os.Getenv(envRun); c.Run == "" {
		c.Run = l.run()
	}
	if e.err == nil {
		c.Address = e.place(l, c.Size)
	}
	if e.err != nil {
		return Config{}
	}
	return c
}

// secure is who may take part.
func (e *env) secure(c *Config) {
	if file := os.Getenv(envSecretFile); file != "" {
		secret, err := store.ReadSecret(file)
		if err != nil {
			e.fail("%s: %v", envSecretFile, err)
		}
		c.Secret = secret
	}
	t := &store.TLSFiles{CA: os.Getenv(envTLSCA), Cert: os.Getenv(envTLSCert), Key: os.Getenv(envTLSKey)}
	switch {
	case (t.Cert == "") != (t.Key == ""):
		e.fail("%s and %s go together", envTLSCert, envTLSKey)
	case t.CA != "" || t.Cert != "":
		t.RequireClient = t.CA != "" && c.Secret == nil
		c.TLS = t
	}
}

// place is where a group of a size meets.
func (e *env) place(l launcher, size int) string {
	if url := os.Getenv(envStore); url != "" {
		if !isURL(url) {
			e.fail("%s is %q, which is no URL, as muster://host:port", envStore, url)
		}
		return url
	}
	host, port := os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")
	switch {
	case host != "" && port != "":
		return e.master(host, port)
	case host == "" && port == "" && size == 1:
		return ""
	case l.address != nil:
		return l.address(e)
	case host == "":
		e.missing("MASTER_ADDR")
	default:
		e.missing("MASTER_PORT")
	}
	return ""
}

// master is MASTER_ADDR:MASTER_PORT, or the next port if torchrun's agent has that one.
func (e *env) master(host, port string) string {
	n := e.number("MASTER_PORT")
	if n < 1 || n > 65535 {
		e.fail("MASTER_PORT is %q, which is no port", port)
		return ""
	}
	if agent, err := strconv.ParseBool(os.Getenv(agentStore)); err == nil && agent {
		n++
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(n))
}

// at is MASTER_ADDR, if it is set, or host; and MASTER_PORT, or one that the job's id makes: the same on every rank, below the
// ports that the system gives away, and seldom another job's.
func (e *env) at(host, job string) string {
	if addr := os.Getenv("MASTER_ADDR"); addr != "" {
		host = addr
	}
	port := os.Getenv("MASTER_PORT")
	if port == "" {
		h := fnv.New32a()
		h.Write([]byte(job))
		return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(15000+int(h.Sum32()%16000)))
	}
	return e.master(host, port)
}

func envRunID(names ...string) func() string {
	return func() string {
		for _, n := range names {
			if v := os.Getenv(n); v != "" {
				return v
			}
		}
		return ""
	}
}

// openMPIAddress is the loopback, if all ranks are on one node: mpirun tells nobody where rank 0 is.
func openMPIAddress(e *env) string {
	if e.number("OMPI_COMM_WORLD_LOCAL_SIZE") == e.number("OMPI_COMM_WORLD_SIZE") || os.Getenv("MASTER_ADDR") != "" {
		return e.at("127.0.0.1", envRunID("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")())
	}
	e.missing("MASTER_ADDR")
	return ""
}

func (e *env) fail(format string, args ...any) {
	if e.err == nil {
		e.err = invalid("the environment of %s: %s", e.launcher, fmt.Sprintf(format, args...))
	}
}

func (e *env) missing(name string) { e.fail("%s is not set", name) }

// number is the first of the variables that is set, which has to be a number ≥ 0.
func (e *env) number(names ...string) int {
	for _, name := range names {
		v := os.Getenv(name)
		if v == "" {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			e.fail("%s is %q, which is no number ≥ 0", name, v)
		}
		return int(n)
	}
	e.missing(strings.Join(names, " or "))
	return 0
}

func (e *env) duration(name string) time.Duration {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		e.fail("%s is %q, which is no duration, as 30s or 5m", name, v)
	}
	return d
}

func (e *env) bool(name string) bool {
	v := os.Getenv(name)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		e.fail("%s is %q, which is neither 1 nor 0", name, v)
	}
	return b
}

// Environ is FromEnv's inverse, for launchers: what to append to the environment of the process that is to be c.Rank. It has the variables
// of torchrun, which most programs know, and unsets what an outer launcher may have left. A Listener is given
// by its address; Store, Schemes, Dial, Secret, TLS, Codec, Logger and Trace are not told (MUSTER_SECRET_FILE and the like stay as they are, and so does MUSTER_TRACE without a TraceDir). LOCAL_RANK is the launcher's to add.
func (c Config) Environ() []string {
	vars := []string{
		"RANK=" + strconv.Itoa(c.Rank),
		"WORLD_SIZE=" + strconv.Itoa(c.Size),
		agentStore + "=False",
		"TORCHELASTIC_RUN_ID=" + c.Run,
		envRun + "=" + c.Run,
		envName + "=" + c.Name,
		envHost + "=" + c.Host,
		envTimeout + "=" + environDuration(c.Timeout),
		envExpiry + "=" + environDuration(c.Expiry),
		envLiveness + "=" + environDuration(c.LivenessTimeout),
		envInsecure + "=" + map[bool]string{true: "1"}[c.Insecure],
	}
	if c.TraceDir != "" {
		vars = append(vars, envTrace+"="+c.TraceDir)
	}
	address := c.Address
	if c.Listener != nil {
		address = c.Listener.Addr().String()
	}
	if isURL(address) {
		return append(vars, envStore+"="+address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = "", ""
	}
	return append(vars, envStore+"=", "MASTER_ADDR="+host, "MASTER_PORT="+port)
}

func environDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}
