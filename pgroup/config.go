package pgroup

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

const (
	defaultName    = "world"
	defaultTimeout = 5 * time.Minute
	defaultExpiry  = time.Hour
)

// Config says who this process is, and where the ranks of the group meet. Fields that are zero have
// the defaults.
type Config struct {
	Name string // of the group, on a store that several share; default "world"
	Run  string // id of the run of the job: another run is another group
	Rank int    // 0 ≤ Rank < Size
	Size int    // ≥ 1; 0 is an error, not a group of one

	// Where to meet, one of them; a group of one needs none:

	// Address, Listener or Store is where the ranks meet; exactly one must be set. A group of one
	// needs none.
	//
	// Address is host:port, where rank 0 listens and the others connect, in any order of starting;
	// if the port is in use, rank 0 connects too. Or it is the URL of a running store, such as
	// muster://host:port.
	Address  string
	Listener net.Listener // on rank 0, which hosts the store here; Create owns it, even if it fails
	Store    *store.Store // a running store, which stays open when the group is closed

	Schemes store.Schemes      // of URLs in Address; default store.Builtin
	Dial    *store.DialOptions // for Address; Create always waits until the store listens

	// Secret is shared by all ranks and authenticates them; see store.ReadSecret. It is never sent.
	// Rank 0 requires it of the others.
	Secret []byte
	// TLS has the files with which rank 0 serves TLS, and the others connect: a server certificate
	// on rank 0, none or a client certificate elsewhere. Dial.TLS takes precedence on clients.
	TLS *store.TLSFiles

	// Insecure lets rank 0 listen on other addresses than loopback without authentication (neither
	// Secret nor TLS with client certificates). Set it only in a trusted network.
	Insecure bool

	Timeout time.Duration // of Create, and of an operation whose ctx has no deadline; default 5 min
	// Stall is after how long without progress a missing rank fails a collective operation of this group
	// (ErrStalled), if it has begun a [Phase] before: a rank that goes on may take until the deadline of the
	// operation, and one that hangs fails it sooner. The least Stall of the ranks that have called
	// counts. Ranks that never had a phase in this group have only the deadline, and so have Create, Sub
	// and Shrink, whose missing ranks are absent. At least 2 s, and it counts as 4n ms in a group of n
	// ranks if that is longer; default 0: never.
	Stall  time.Duration
	Expiry time.Duration // of a message that is not received; default 1 h
	// LivenessTimeout is how long a rank may send nothing, answers to liveness probes included,
	// before it has failed (ErrLost); and how long the store may, before a rank reconnects. Default
	// 10 s, or that of the store; at least 0.6 s. Choose more on hosts with many more threads than
	// cores, and less to detect frozen processes sooner. The end of a process is detected in half a
	// second in any case. Config.Dial takes precedence; a Config.Store has its own.
	LivenessTimeout time.Duration

	// SharedMemory says whether the ranks of one host share memory, here and in packages collective
	// and gather; default SharedMemoryAuto.
	SharedMemory SharedMemory

	Host   string       // names this node; default: boot id, and mount and ipc namespace
	Codec  wire.Codec   // of objects; default wire.MsgPack
	Logger *slog.Logger // default: none; see Group.Logger for the attributes of its records

	// Trace gets an event for each operation of the group and of the groups made of it, those of
	// packages gather and collective included unless they have their own sink. Default: none,
	// which costs nothing.
	Trace trace.Sink
	// TraceDir is the directory in which Create makes a file of all events of Trace, for "muster
	// trace" and Perfetto: rank3-HOST-PID.json. The directory is made if it does not exist.
	// Default: none.
	TraceDir string

	file *traceFile // of TraceDir
	sink trace.Sink // Trace and file; nil if neither is set
}

// SharedMemory says whether the ranks of one host share memory. Without it, the store and TCP do the
// same.
type SharedMemory string

const (
	// SharedMemoryAuto: if it takes at most an eighth of what the host and the control groups of the
	// process have left.
	SharedMemoryAuto SharedMemory = ""
	// SharedMemoryOff: never.
	SharedMemoryOff SharedMemory = "off"
)

// Check returns an error unless the process may share n more bytes.
func (s SharedMemory) Check(n int64) error {
	if s == SharedMemoryOff {
		return errors.New("SharedMemory is off")
	}
	return shm.CheckMemory(8 * n)
}

// withDefaults validates c and fills in the defaults.
func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	c.Name = cmp.Or(c.Name, defaultName)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Expiry = cmp.Or(c.Expiry, defaultExpiry)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Codec = cmp.Or(c.Codec, wire.MsgPack)
	return c, nil
}

func (c *Config) check() error {
	switch {
	case c.SharedMemory != SharedMemoryAuto && c.SharedMemory != SharedMemoryOff:
		return invalid("Config.SharedMemory is %q, neither empty nor %q", c.SharedMemory, SharedMemoryOff)
	case c.Size == 0:
		return invalid("Config.Size is 0: is the environment of the launcher missing? A group of one has Size 1")
	case c.Size < 0:
		return invalid("Config.Size is %d", c.Size)
	case c.Rank < 0 || c.Rank >= c.Size:
		return invalid("Config.Rank is %d, with a Config.Size of %d: ranks are 0 to %d", c.Rank, c.Size, c.Size-1)
	case c.Timeout < 0:
		return invalid("Config.Timeout is %v", c.Timeout)
	case c.Stall != 0 && c.Stall < minStall:
		return invalid("Config.Stall (MUSTER_STALL) is %v: it is at least %v, as ranks report their progress once a second", c.Stall, minStall)
	case c.Expiry < 0:
		return invalid("Config.Expiry is %v", c.Expiry)
	case c.LivenessTimeout < 0:
		return invalid("Config.LivenessTimeout is %v", c.LivenessTimeout)
	case len(c.Name) > wire.MaxKey/4:
		return invalid("Config.Name has %d bytes, the limit is %d", len(c.Name), wire.MaxKey/4)
	case len(c.Run) > wire.MaxKey/4:
		return invalid("Config.Run has %d bytes, the limit is %d", len(c.Run), wire.MaxKey/4)
	}
	return c.checkRendezvous()
}

// checkRendezvous checks that exactly one of Address, Listener and Store is set, and is valid.
func (c *Config) checkRendezvous() error {
	var places []string
	for _, p := range []struct {
		field string
		set   bool
	}{{"Address", c.Address != ""}, {"Listener", c.Listener != nil}, {"Store", c.Store != nil}} {
		if p.set {
			places = append(places, "Config."+p.field)
		}
	}
	switch {
	case len(places) > 1:
		return invalid("%s are set: set only one of them", strings.Join(places, " and "))
	case len(places) == 0 && c.Size > 1:
		return invalid("none of Config.Address, Config.Listener and Config.Store is set: the %d ranks need one of them to meet", c.Size)
	case c.Listener != nil && c.Rank != 0:
		return invalid("Config.Listener on rank %d: only rank 0 hosts; the others have its Config.Address", c.Rank)
	case c.Address == "" || isURL(c.Address):
		return nil
	}
	return c.checkAddress()
}

func (c *Config) checkAddress() error {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return invalid("Config.Address %q is not host:port: %v", c.Address, err)
	}
	n, err := strconv.Atoi(port)
	switch {
	case err != nil || n < 0 || n > 65535:
		return invalid("Config.Address %q: port %q is not a number from 1 to 65535", c.Address, port)
	case n == 0 && c.Size > 1:
		return invalid("Config.Address %q has port 0, which the other ranks cannot know: listen first, and give rank 0 the Config.Listener", c.Address)
	case strings.ContainsAny(host, " /"):
		return invalid("Config.Address %q: invalid host name", c.Address)
	}
	return nil
}

func isURL(address string) bool {
	return strings.Contains(address, "://") || strings.HasPrefix(address, "mem:")
}

// argumentError is an error with a text that matches the error is.
type argumentError struct {
	text string
	is   error
}

func (e *argumentError) Error() string        { return e.text }
func (e *argumentError) Is(target error) bool { return target == e.is }

func invalid(format string, args ...any) error {
	return &argumentError{"pgroup: " + fmt.Sprintf(format, args...), ErrInvalid}
}
