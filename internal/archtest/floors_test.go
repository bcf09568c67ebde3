package archtest

import "strings"

// module is the core's path; that of each other module here is its directory below it.
const module = "github.com/muster-pg/muster"

// A room is one package, named by its directory.
type room struct {
	name string
	may  []string // rooms of ours that it may import; nil: all of the ground floor
	pure bool     // no I/O, locks, clocks, goroutines or chance: see impure
}

// floors is the house. A package imports only what its room lists: from floors below, or
// its parent. "x/..." is x and every package below it, and "..." all.
var floors = [][]room{
	{
		{name: "wire"},
		{name: "internal/tcpwire"},
		{name: "internal/pickle"},
		{name: "internal/flightrecorder", may: []string{"internal/pickle"}},
		{name: "trace"},
		{name: "internal/timeline", may: []string{"trace"}}, // traces of ranks, merged
		{name: "tensor"},
		{name: "tensor/safetensors"},
		{name: "shm"},
		{name: "clients/python", may: []string{}}, // Python, and tests of it in Go
		{name: "internal/alias", may: []string{}}, // slices that share memory
		{name: "internal/archtest", may: []string{}},
		{name: "internal/blocking", may: []string{}}, // calls that may block without end
		{name: "internal/certs", may: []string{}},
		{name: "internal/core", may: []string{"wire", "internal/reduce", "tensor"}, pure: true}, // the state machine
		{name: "internal/journal", may: []string{}},                                             // a log on the disk
		{name: "internal/journal/disk", may: []string{"internal/journal"}},
		{name: "internal/durable", may: []string{"wire", "internal/core", "internal/journal", "internal/journal/disk"}}, // a machine in a directory
		{name: "internal/spin"},
		{name: "internal/hostmem", may: []string{"wire", "internal/core", "internal/mutationtest", "internal/spin"}}, // records decided in shared memory
		{name: "internal/durable/logtest", may: []string{"wire", "internal/core", "internal/durable"}},
		{name: "internal/launch"},                        // starts processes
		{name: "internal/launcher", may: []string{}},     // their variables
		{name: "internal/mutationtest", may: []string{}}, // rules that are broken, for tests
		{name: "internal/quietlog", may: []string{}},     // a limit of a log's records
		{name: "internal/reduce"},
		{name: "internal/transport"}, // non-blocking socket I/O
	},
	{
		{name: "store", may: []string{"wire", "trace", "internal/blocking", "internal/core", "internal/durable", "internal/quietlog", "internal/transport"}},
		{name: "nfsws", may: []string{"internal/blocking", "tensor/..."}},
		{name: "internal/tree", may: []string{"tensor"}},
	},
	{
		{name: "internal/scenario", may: []string{"store", "wire", "trace"}}, // rules as text
		{name: "pgroup", may: []string{"internal/hostmem", "internal/launcher", "shm", "store", "wire", "trace"}},
		{name: "internal/status", may: []string{"store", "wire", "internal/flightrecorder", "internal/tcpwire"}},
		{name: "interop/tcpstore", may: []string{"store", "wire", "internal/tcpwire", "trace", "internal/transport"}},
	},
	{
		{name: "status", may: []string{"internal/status", "store"}},
		{name: "pgroup/pgrouptest", may: []string{"internal/launch", "internal/status", "pgroup", "store"}},
		{name: "interop/vllm", may: []string{"pgroup", "store", "wire", "internal/pickle", "interop/tcpstore", "tensor", "internal/reduce"}},
		{name: "membership", may: []string{"pgroup", "store"}},
		{name: "internal/benchcase", may: []string{"pgroup", "store"}}, // what both benchmark programs measure
		{name: "internal/link", may: []string{"internal/spin", "pgroup", "shm"}},
		{name: "internal/testcluster", may: []string{
			"pgroup", "store/...", "wire/...", "trace", "internal/core", "internal/launch", "internal/transport",
		}},
	},
	{
		{name: "collective", may: []string{"internal/alias", "internal/link", "internal/reduce", "internal/spin", "pgroup", "shm", "tensor", "trace", "wire"}},
		{name: "gather", may: []string{"internal/blocking", "internal/link", "pgroup", "shm", "store", "tensor/...", "internal/tree", "nfsws", "trace", "wire"}},
	},
	{
		{name: "dataparallel", may: []string{"collective", "internal/alias", "membership", "pgroup", "store", "tensor", "trace"}},
	},
	{ // other modules
		{name: "examples/...", may: []string{"..."}},
		{name: "cmd/muster/...", may: []string{"..."}},
		{name: "bench/...", may: []string{"..."}},
		{name: "integration/...", may: []string{"..."}},
		{name: "store/etcdlog/...", may: []string{"..."}},
		{name: "telemetry/...", may: []string{"..."}},
	},
}

// impure are the packages of the standard library that a pure room leaves alone.
var impure = []string{
	"context", "crypto/rand", "io/fs", "log/...", "math/rand/...", "net/...", "os/...",
	"runtime/...", "sync/...", "syscall/...",
}

// clocks are the functions of package time that a pure room leaves alone.
var clocks = []string{
	"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until",
}

// maxLines is the most that a file without tests may have.
const maxLines = 500

// find returns the room of the package in dir, and its floor.
func find(dir string) (r room, floor int, ok bool) {
	for floor, rooms := range floors {
		for _, r := range rooms {
			if match(dir, r.name) {
				return r, floor, true
			}
		}
	}
	return room{}, 0, false
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
	return strings.HasSuffix(name, "test") || strings.HasPrefix(name, "test") || name == "scenario"
}
