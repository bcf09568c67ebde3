package archtest

import "strings"

// module is the core's path; that of each other module here is its directory below it.
const module = "github.com/muster-pg/muster"

// imports has, for each package by its directory, the packages of ours that it may import. "x/..." is x and
// every package below it, and "..." all.
var imports = map[string][]string{
	"wire":                     {},
	"internal/tcpwire":         {},
	"internal/pickle":          {"tensor", "wire"},
	"internal/flightrecorder":  {"internal/pickle"},
	"trace":                    {},
	"internal/timeline":        {"trace"}, // traces of ranks, merged
	"tensor":                   {},
	"tensor/safetensors":       {"tensor"},
	"shm":                      {},
	"clients/python":           {}, // Python, and tests of it in Go
	"internal/alias":           {}, // slices that share memory
	"internal/archtest":        {},
	"internal/blocking":        {}, // calls that may block without end
	"internal/certs":           {},
	"internal/core":            {"wire", "internal/reduce", "tensor"}, // the state machine
	"internal/journal":         {},                                    // a log on the disk
	"internal/journal/disk":    {"internal/journal"},
	"internal/durable":         {"wire", "internal/core", "internal/journal", "internal/journal/disk"}, // a machine in a directory
	"internal/spin":            {},
	"internal/hostmem":         {"wire", "internal/core", "internal/mutationtest", "internal/spin"}, // records decided in shared memory
	"internal/durable/logtest": {"wire", "internal/core", "internal/durable"},
	"internal/launch":          {"internal/procfs"}, // starts processes
	"internal/launcher":        {},                  // their variables
	"internal/mutationtest":    {},                  // rules that are broken, for tests
	"internal/procfs":          {},                  // what the kernel says of processes
	"internal/quietlog":        {},                  // a limit of a log's records
	"internal/reduce":          {"tensor"},
	"internal/transport":       {},                             // non-blocking socket I/O
	"internal/handshake":       {"wire", "internal/transport"}, // what both ends do before they trust each other
	"internal/relay":           {"wire", "internal/transport"}, // many connections over one
	"store":                    {"wire", "trace", "internal/blocking", "internal/core", "internal/durable", "internal/handshake", "internal/procfs", "internal/quietlog", "internal/relay", "internal/transport"},
	"nfsws":                    {"internal/blocking", "tensor/..."},
	"internal/joint":           {"tensor/..."},                                                         // tensors of several parts, as one
	"tensor/checkpoint":        {"internal/blocks", "internal/joint", "internal/pickle", "tensor/..."}, // files of many ranks
	"internal/blocks":          {},                                                                     // tensors of parts
	"internal/tree":            {"tensor"},
	"internal/scenario":        {"store", "wire", "internal/testcluster"}, // rules as text
	"internal/linear":          {"store", "wire"},                         // histories of a store, for tests
	"pgroup":                   {"internal/hostmem", "internal/launcher", "shm", "store", "wire", "trace"},
	"internal/status":          {"membership", "store", "wire", "internal/flightrecorder", "internal/tcpwire"},
	"interop/tcpstore":         {"store", "wire", "internal/procfs", "internal/tcpwire", "trace", "internal/transport"},
	"status":                   {"internal/status", "store"},
	"pgroup/pgrouptest":        {"internal/launch", "internal/status", "pgroup", "store"},
	"interop/vllm":             {"pgroup", "store", "wire", "internal/pickle", "interop/tcpstore", "tensor", "internal/reduce"},
	"membership":               {"pgroup", "store"},
	"internal/benchcase":       {"pgroup", "store"}, // what both benchmark programs measure
	"internal/link":            {"wire", "internal/handshake", "internal/spin", "pgroup", "shm"},
	"internal/testcluster":     {"pgroup", "store/...", "wire/...", "trace", "internal/core", "internal/launch", "internal/procfs", "internal/transport"},
	"collective":               {"internal/alias", "internal/link", "internal/reduce", "internal/spin", "pgroup", "shm", "tensor", "trace", "wire"},
	"gather":                   {"internal/blocking", "internal/blocks", "internal/joint", "internal/link", "pgroup", "shm", "store", "tensor/...", "internal/tree", "nfsws", "trace", "wire"},
	"dataparallel":             {"collective", "internal/alias", "internal/link", "membership", "pgroup", "store", "tensor", "trace"},

	// other modules
	"examples/...":      {"..."},
	"cmd/muster/...":    {"..."},
	"bench/...":         {"..."},
	"integration/...":   {"..."},
	"store/etcdlog/...": {"..."},
	"telemetry/...":     {"..."},
}

// pure are the packages without I/O, locks, clocks, goroutines and chance: see impure.
var pure = []string{"internal/core"}

// impure are the packages of the standard library that a pure package does not import.
var impure = []string{
	"context", "crypto/rand", "io/fs", "log/...", "math/rand/...", "net/...", "os/...",
	"runtime/...", "sync/...", "syscall/...",
}

// clocks are the functions of package time that a pure package does not call.
var clocks = []string{
	"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until",
}

// mayImport returns what the package in dir may import.
func mayImport(dir string) (may []string, ok bool) {
	for name, may := range imports {
		if match(dir, name) {
			return may, true
		}
	}
	return nil, false
}

// match reports whether one of the patterns, each a path, "path/..." or "...", covers path.
func match(path string, patterns ...string) bool {
	for _, p := range patterns {
		base, tree := strings.CutSuffix(p, "/...")
		if p == "..." || path == base || tree && strings.HasPrefix(path, base+"/") {
			return true
		}
	}
	return false
}

// isTestPackage reports whether the package in dir is made for tests, by its name.
func isTestPackage(dir string) bool {
	name := dir[strings.LastIndex(dir, "/")+1:]
	return strings.HasSuffix(name, "test") || strings.HasPrefix(name, "test") || name == "scenario" || name == "linear"
}
