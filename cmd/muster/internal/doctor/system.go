package doctor

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
)

// System is what is asked of the machine. [Here] answers truly.
type System struct {
	Getenv     func(name string) string
	FromEnv    func() (pgroup.Config, error) // who this process is, if a launcher's variables are set
	Now        func() time.Time
	Hostname   func() (string, error)
	LookupHost func(ctx context.Context, host string) ([]string, error)
	Interfaces func() ([]Interface, error)
	Listen     func(ctx context.Context, network, addr string) (net.Listener, error)
	Dial       func(ctx context.Context, network, addr string) (net.Conn, error)
	Holder     func(port int) string // who listens at it: "nginx (pid 7)"; "" if nobody can tell
	Ephemeral  func() (first, last int)
	OpenFiles  func() (limit uint64, err error)
	Backlog    func() int // the longest queue of connections that the system has; 0 if it cannot tell
	SharedSize func() (size, free uint64, err error)
	Memfd      func() error
	Room       func(n int64) error // whether there is memory for n more bytes
	Volume     func(dir string) (Volume, error)
}

// Interface is one of the network.
type Interface struct {
	Name  string
	Addrs []net.IP
}

// Volume is the file system of a directory.
type Volume struct {
	Kind string // "" if it is not known
	Free uint64
}

// Here is the machine that this process runs on.
func Here() *System {
	return &System{
		Getenv: os.Getenv, FromEnv: pgroup.FromEnv, Now: time.Now, Hostname: os.Hostname,
		LookupHost: net.DefaultResolver.LookupHost, Interfaces: interfaces,
		Listen: new(net.ListenConfig).Listen, Dial: new(net.Dialer).DialContext,
		Holder: holder, Ephemeral: ephemeral, OpenFiles: openFiles, Backlog: backlog,
		SharedSize: sharedSize, Memfd: memfd, Room: shm.CheckMemory, Volume: volume,
	}
}

func interfaces() (all []Interface, err error) {
	nics, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, n := range nics {
		addrs, err := n.Addrs()
		if err != nil {
			continue // it has just gone
		}
		i := Interface{Name: n.Name}
		for _, a := range addrs {
			if in, ok := a.(*net.IPNet); ok {
				i.Addrs = append(i.Addrs, in.IP)
			}
		}
		all = append(all, i)
	}
	return all, nil
}
