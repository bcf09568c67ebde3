package pgroup

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

const (
	defaultName    = "world"
	defaultTimeout = 5 * time.Minute
	defaultExpiry  = time.Hour
)

// Config says who this process is and where the group meets.
type Config struct {
	Name string // tells groups on one store apart; default "world"
	Run  string // tells runs of one job apart: another run is another group
	Rank int    // 0 ≤ Rank < Size
	Size int    // ≥ 1; 0 is an error, not a group of one

	// Where to meet, one of them; a group of one needs none:

	// Address is host:port, where rank 0 listens and the others connect, as soon as it does; if the port is in
	// use there, rank 0 connects too. Or it is the URL of a store that is there, as muster://host:port.
	Address  string
	Listener net.Listener // on rank 0: it hosts here. Create takes it over, also if it fails
	Store    *store.Store // a store that is there; it stays open when the group is closed

	Schemes store.Schemes      // for Address; nil: store.Builtin
	Dial    *store.DialOptions // for Address; Create always waits until somebody listens

	// Secret is what every rank has to know to take part; see store.ReadSecret. It is never sent. Rank 0 hosts with it.
	Secret []byte
	// TLS is how rank 0 hosts, and how the others connect: it needs a certificate for a server there, and none, or one for a client,
	// elsewhere. The client's part of Dial comes first.
	TLS *store.TLSFiles

	// Insecure lets rank 0 listen beyond loopback though whoever can connect can take part, since there is neither a Secret nor TLS
	// that requires certificates of clients: say so only in a network that you trust.
	Insecure bool

	Timeout time.Duration // of Create, and of a verb whose ctx has no deadline; default 5 min
	Expiry  time.Duration // of a message that nobody fetches; default 1 h
	// LivenessTimeout is for how long a rank may be silent, answers to liveness probes included, before it is lost (ErrLost); and for how
	// long a store may, before its connection is made anew. Default 10 s, or what a store that is there has; at least 0.6 s. Longer suits
	// hosts with many more threads than cores, shorter detects frozen processes sooner. A rank whose process ends is detected in half a second, whatever this is.
	// Config.Dial comes first; a Config.Store has its own.
	LivenessTimeout time.Duration

	Host   string       // names this node; default: boot id and mount and ipc namespace
	Codec  wire.Codec   // of objects; default wire.MsgPack
	Logger *slog.Logger // default: none; see Group.Logger for what its records have

	// Trace is told of every verb, of the group and of all that are made of it; of packages gather and collective too, unless they have a
	// sink of their own. Default: none, which costs nothing.
	Trace trace.Sink
	// TraceDir is where Create makes a file of all that Trace is told, for "muster trace" and Perfetto: rank3-HOST-PID.json. The directory is
	// made if it is not there. Default: none.
	TraceDir string

	file *traceFile // of TraceDir
	sink trace.Sink // Trace and file; nil: none
}

// withDefaults checks c and fills in what it leaves out.
func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Expiry == 0 {
		c.Expiry = defaultExpiry
	}
	if c.Codec == nil {
		c.Codec = wire.MsgPack
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func (c *Config) check() error {
	switch {
	case c.Size == 0:
		return invalid("Config.Size is 0: is the environment of the launcher missing? A group of one has Size 1")
	case c.Size < 0:
		return invalid("Config.Size is %d", c.Size)
	case c.Rank < 0 || c.Rank >= c.Size:
		return invalid("Config.Rank is %d, with a Config.Size of %d: ranks are 0 to %d", c.Rank, c.Size, c.Size-1)
	case c.Timeout < 0:
		return invalid("Config.Timeout is %v", c.Timeout)
	case c.Expiry < 0:
		return invalid("Config.Expiry is %v", c.Expiry)
	case c.LivenessTimeout < 0:
		return invalid("Config.LivenessTimeout is %v", c.LivenessTimeout)
	case len(c.Name) > wire.MaxKey/4:
		return invalid("Config.Name has %d bytes, the limit is %d", len(c.Name), wire.MaxKey/4)
	case len(c.Run) > wire.MaxKey/4:
		return invalid("Config.Run has %d bytes, the limit is %d", len(c.Run), wire.MaxKey/4)
	}
	return c.checkPlace()
}

// checkPlace checks that there is one place to meet, and that it can be one.
func (c *Config) checkPlace() error {
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
		return invalid("%s are set: a group meets in one place", strings.Join(places, " and "))
	case len(places) == 0 && c.Size > 1:
		return invalid("none of Config.Address, Config.Listener and Config.Store is set: where do the %d ranks meet?", c.Size)
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
		return invalid("Config.Address %q: no such host can be", c.Address)
	}
	return nil
}

func isURL(address string) bool {
	return strings.Contains(address, "://") || strings.HasPrefix(address, "mem:")
}

// badArgument is an error that matches is, and says no more than it is told to.
type badArgument struct {
	text string
	is   error
}

func (e *badArgument) Error() string        { return e.text }
func (e *badArgument) Is(target error) bool { return target == e.is }

func invalid(format string, args ...any) error {
	return &badArgument{"pgroup: " + fmt.Sprintf(format, args...), ErrInvalid}
}
