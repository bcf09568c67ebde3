package pgroup

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/launcher"
	"github.com/muster-pg/muster/store"
)

// The environment variables of muster. An empty one counts as not set.
const (
	envStore    = "MUSTER_STORE"            // URL of a running store
	envName     = "MUSTER_NAME"             // Config.Name
	envRun      = "MUSTER_RUN"              // Config.Run; overrides the launcher's
	envTimeout  = "MUSTER_TIMEOUT"          // Config.Timeout, as "30s"
	envStall    = "MUSTER_STALL"            // Config.Stall, as "1m"
	envExpiry   = "MUSTER_EXPIRY"           // Config.Expiry, as "1h"
	envLiveness = "MUSTER_LIVENESS_TIMEOUT" // Config.LivenessTimeout, as "30s"
	envShared   = "MUSTER_SHARED_MEMORY"    // Config.SharedMemory, "auto" or "off"
	envHost     = "MUSTER_HOST"             // Config.Host
	envInsecure = "MUSTER_INSECURE"         // Config.Insecure, 1 or 0
	envTrace    = "MUSTER_TRACE"            // Config.TraceDir
	envElastic  = "MUSTER_ELASTIC"          // of a worker, which has no rank; see package dataparallel

	envSecretFile = "MUSTER_SECRET_FILE" // file of Config.Secret
	envTLSCA      = "MUSTER_TLS_CA"      // these three are PEM files, of Config.TLS
	envTLSCert    = "MUSTER_TLS_CERT"
	envTLSKey     = "MUSTER_TLS_KEY"
)

// agentStore is set by torchrun if its agent listens on MASTER_PORT.
const agentStore = "TORCHELASTIC_USE_AGENT_STORE"

// launch is how the ranks of a launcher meet.
type launch struct {
	launcher.Launcher
	run     func() string     // returns the id of the run
	address func(*env) string // returns where the ranks meet if MASTER_ADDR is not set
}

// launches is in the order of launcher.All.
var launches = []launch{
	{launcher.Torchrun, func() string { return os.Getenv("TORCHELASTIC_RUN_ID") }, nil},
	{launcher.OpenMPI, openMPIRun, openMPIAddress},
	{launcher.Slurm, slurmRun, slurmAddress},
	{launcher.Kubernetes, func() string { return "" }, nil},
}

// FromEnv returns the Config that a launcher has set in the environment. The first launcher counts
// whose variable is set:
//
//	RANK                  torchrun, muster run
//	OMPI_COMM_WORLD_RANK  Open MPI
//	SLURM_PROCID          Slurm
//	JOB_COMPLETION_INDEX  a Kubernetes indexed job, with WORLD_SIZE set in its manifest
//
// The ranks meet at MASTER_ADDR and MASTER_PORT, or at the store of MUSTER_STORE. Slurm needs
// neither: the default is the first node of the step, and a port derived from the job's id. Open
// MPI on one node defaults to its loopback address. If torchrun's agent listens on MASTER_PORT, the
// next port is used.
//
// MUSTER_NAME, MUSTER_RUN, MUSTER_TIMEOUT, MUSTER_STALL, MUSTER_EXPIRY, MUSTER_LIVENESS_TIMEOUT, MUSTER_HOST,
// MUSTER_SHARED_MEMORY and MUSTER_INSECURE set the fields with these names, and MUSTER_TRACE sets TraceDir.
// MUSTER_SECRET_FILE is the file from which Secret is read. MUSTER_TLS_CA, MUSTER_TLS_CERT and
// MUSTER_TLS_KEY are the files of TLS; with a CA and without a secret, rank 0 requires client
// certificates.
//
// An error names the variable that is missing or malformed, and its launcher.
func FromEnv() (Config, error) {
	for _, l := range launches {
		if os.Getenv(l.Rank) != "" {
			e := env{launcher: l.Name}
			if l.Name == launcher.Torchrun.Name && os.Getenv("TORCHELASTIC_RUN_ID") == "" && os.Getenv(envRun) != "" {
				e.launcher = "muster run" // it sets the variables of torchrun
			}
			c := e.config(l)
			return c, e.err
		}
	}
	if os.Getenv(envElastic) != "" {
		return Config{}, invalid("a worker of an elastic job (%s is set) has no rank before a view forms: run without --elastic, or join the job, in Go with dataparallel.WorkerFromEnv", envElastic)
	}
	var known []string
	for _, l := range launches {
		known = append(known, fmt.Sprintf("%s (%s)", l.Rank, l.Name))
	}
	return Config{}, invalid("no launcher's environment: none of %s is set; \"muster run -n 4 -- PROGRAM\" sets it, or give rank and size in the program", strings.Join(known, ", "))
}

// env reads variables. It keeps its first error.
type env struct {
	launcher string
	err      error
}

func (e *env) config(l launch) Config {
	c := Config{
		Rank: e.number(l.Rank), Size: e.number(l.Size...), Name: os.Getenv(envName), Host: os.Getenv(envHost),
		Timeout: e.duration(envTimeout), Stall: e.duration(envStall), Expiry: e.duration(envExpiry), Insecure: e.bool(envInsecure),
		LivenessTimeout: e.duration(envLiveness), TraceDir: os.Getenv(envTrace),
	}
	switch v := os.Getenv(envShared); v {
	case "", "auto":
	case string(SharedMemoryOff):
		c.SharedMemory = SharedMemoryOff
	default:
		e.fail("%s is %q, which is neither auto nor off", envShared, v)
	}
	e.setSecurity(&c)
	c.Run = cmp.Or(os.Getenv(envRun), l.run())
	if e.err == nil {
		c.Address = e.rendezvous(l, c.Size)
	}
	if e.err != nil {
		return Config{}
	}
	return c
}

// setSecurity sets the authentication and encryption.
func (e *env) setSecurity(c *Config) {
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

// rendezvous returns the address or URL at which a group of a size meets.
func (e *env) rendezvous(l launch, size int) string {
	if url := os.Getenv(envStore); url != "" {
		if !isURL(url) {
			e.fail("%s is %q, which is not a URL, such as muster://host:port", envStore, url)
		}
		return url
	}
	host, port := os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")
	switch {
	case host != "" && port != "":
		return e.masterAddress(host, port)
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

// masterAddress returns MASTER_ADDR:MASTER_PORT, or the next port if torchrun's agent has that one.
func (e *env) masterAddress(host, port string) string {
	n := e.number("MASTER_PORT")
	if n < 1 || n > 65535 {
		e.fail("MASTER_PORT is %q, which is not a port", port)
		return ""
	}
	if agent, err := strconv.ParseBool(os.Getenv(agentStore)); err == nil && agent {
		n++
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(n))
}

// derivedAddress returns host, or MASTER_ADDR if it is set, with MASTER_PORT or a port derived from
// the job's id. That port is the same on all ranks, below the ports that the system assigns, and
// rarely that of another job.
func (e *env) derivedAddress(host, job string) string {
	host = cmp.Or(os.Getenv("MASTER_ADDR"), host)
	port := os.Getenv("MASTER_PORT")
	if port == "" {
		h := fnv.New32a()
		h.Write([]byte(job))
		return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(15000+int(h.Sum32()%16000)))
	}
	return e.masterAddress(host, port)
}

func openMPIRun() string {
	return cmp.Or(os.Getenv("PMIX_NAMESPACE"), os.Getenv("OMPI_MCA_ess_base_jobid"))
}

// openMPIAddress returns the loopback address if all ranks are on one node: mpirun does not
// pass the address of rank 0 to ranks.
func openMPIAddress(e *env) string {
	if e.number("OMPI_COMM_WORLD_LOCAL_SIZE") == e.number("OMPI_COMM_WORLD_SIZE") || os.Getenv("MASTER_ADDR") != "" {
		return e.derivedAddress("127.0.0.1", openMPIRun())
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

// first returns the first of the variables that is set. One of them must be.
func (e *env) first(names ...string) (name, value string) {
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			return name, v
		}
	}
	e.missing(strings.Join(names, " or "))
	return "", ""
}

// number is first for an integer ≥ 0.
func (e *env) number(names ...string) int {
	name, v := e.first(names...)
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < 0 {
		e.fail("%s is %q, which is not an integer ≥ 0", name, v)
	}
	return int(n)
}

func (e *env) duration(name string) time.Duration {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		e.fail("%s is %q, which is not a duration, such as 30s or 5m", name, v)
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

// Environ returns the environment variables from which FromEnv makes c, for launchers to append to
// the environment of the process with rank c.Rank. They are those of torchrun, which most programs
// know. Where the ranks meet, and the run, replace what an outer launcher has set; other fields
// that are zero are left out, so that MUSTER_TIMEOUT and the like stay as they are. A Listener
// becomes its address. Store, Schemes, Dial, Secret, TLS, Codec, Logger and Trace are not included.
// The launcher must add LOCAL_RANK.
func (c Config) Environ() []string {
	vars := []string{
		"RANK=" + strconv.Itoa(c.Rank),
		"WORLD_SIZE=" + strconv.Itoa(c.Size),
		agentStore + "=False",
		"TORCHELASTIC_RUN_ID=" + c.Run,
		envRun + "=" + c.Run,
	}
	for _, field := range [...]struct {
		name, value string
		isZero      bool
	}{
		{envName, c.Name, c.Name == ""},
		{envHost, c.Host, c.Host == ""},
		{envTimeout, c.Timeout.String(), c.Timeout == 0},
		{envStall, c.Stall.String(), c.Stall == 0},
		{envExpiry, c.Expiry.String(), c.Expiry == 0},
		{envLiveness, c.LivenessTimeout.String(), c.LivenessTimeout == 0},
		{envInsecure, "1", !c.Insecure},
		{envShared, string(c.SharedMemory), c.SharedMemory == SharedMemoryAuto},
		{envTrace, c.TraceDir, c.TraceDir == ""},
	} {
		if !field.isZero {
			vars = append(vars, field.name+"="+field.value)
		}
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
