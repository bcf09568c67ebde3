package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// System contains the functions through which the checks see the machine. [Here] returns the real
// ones.
type System struct {
	Getenv func(name string) string
	// the configuration of this process, if a launcher's variables are set
	FromEnv    func() (pgroup.Config, error)
	Now        func() time.Time
	LookupHost func(ctx context.Context, host string) ([]string, error)
	Interfaces func() ([]Interface, error)
	Listen     func(ctx context.Context, network, addr string) (net.Listener, error)
	Dial       func(ctx context.Context, network, addr string) (net.Conn, error)
	Open       func(ctx context.Context, url string) (*store.Store, error)
	Ephemeral  func() (first, last int)
}

// Interface is a network interface.
type Interface struct {
	Name  string
	Addrs []net.IP
}

// Here returns the machine that this process runs on.
func Here() *System {
	return &System{
		Getenv: os.Getenv, FromEnv: pgroup.FromEnv, Now: time.Now,
		LookupHost: net.DefaultResolver.LookupHost, Interfaces: interfaces,
		Listen: new(net.ListenConfig).Listen, Dial: new(net.Dialer).DialContext,
		Open: store.Builtin().Open, Ephemeral: ephemeral,
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
			continue // the interface has just been removed
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

// ephemeral returns the range of ports that the system gives to clients.
func ephemeral() (first, last int) {
	first, last = 49152, 65535 // IANA's
	b, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	_, _ = fmt.Sscan(string(b), &first, &last)
	return first, last
}
