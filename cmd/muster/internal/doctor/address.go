package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/link"
)

// hostsOf returns the hosts in a URL or in host:port.
func hostsOf(address string) (hosts []string) {
	for _, way := range waysOf(address) {
		host, _, err := net.SplitHostPort(way)
		if err == nil && host != "" {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// waysOf returns the list of host:port in a URL, which may contain several, or the address itself.
func waysOf(address string) []string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return strings.Split(u.Host, ",")
	}
	if address == "" || strings.HasPrefix(address, "mem:") {
		return nil
	}
	return []string{address}
}

// meeting returns the address where the ranks meet, as far as the environment defines it.
func (d *Doctor) meeting(p *process) string {
	env := d.System.Getenv
	switch {
	case p.config != nil:
		return p.config.Address
	case d.Store != "":
		return d.Store
	case env("MUSTER_STORE") != "":
		return env("MUSTER_STORE")
	case env("MASTER_ADDR") != "" && env("MASTER_PORT") != "":
		return net.JoinHostPort(strings.Trim(env("MASTER_ADDR"), "[]"), env("MASTER_PORT"))
	}
	return ""
}

// elsewhere returns the advice to set an address that all ranks can reach.
func elsewhere(meeting string) string {
	if strings.Contains(meeting, "://") {
		return "let MUSTER_STORE have the store's address in the network, even if this host has a relay: muster://127.0.0.1:7070,store:7070"
	}
	return "let MASTER_ADDR be rank 0's address in the network"
}

// hosting reports whether this process itself is to listen at the address where the ranks meet.
func (p *process) hosting() bool {
	return p.config != nil && p.config.Rank == 0 && p.config.Size > 1 && !strings.Contains(p.config.Address, "://") && p.config.Address != ""
}

// address checks the address where the ranks meet: whether its name resolves, to which addresses,
// and by which interface they are reached.
func (d *Doctor) address(ctx context.Context, p *process) (fs []Finding) {
	for _, host := range hostsOf(d.meeting(p)) {
		fs = append(fs, d.addressOf(ctx, p, host)...)
	}
	return fs
}

func (d *Doctor) addressOf(ctx context.Context, p *process, host string) []Finding {
	addrs, slow, err := d.resolve(ctx, host)
	if err != nil {
		return []Finding{problem(fmt.Sprintf("%s, where the ranks meet, does not resolve here: %s", host, innermost(err)),
			"use its IP address, or make the name known: /etc/hosts, the name server, a headless service in Kubernetes")}
	}
	var fs []Finding
	if slow > 0 {
		fs = append(fs, warning(fmt.Sprintf("%s resolves after more than %v", host, slow), "look at /etc/resolv.conf: a name server in it does not answer; or use the IP address"))
	}
	switch loopback := slices.IndexFunc(addrs, link.IsLoopback); {
	case net.ParseIP(addrs[0]).IsUnspecified():
		return append(fs, problem(host+" is not an address that others can connect to", elsewhere(d.meeting(p))))
	// with several addresses, this one may be a relay's
	case loopback >= 0 && d.severalHosts() && len(hostsOf(d.meeting(p))) == 1:
		return append(fs, problem(fmt.Sprintf("%s is %s here, which other hosts cannot reach, and the ranks are on several", host, addrs[loopback]),
			"look for its name at 127.0.1.1 in /etc/hosts there, and "+elsewhere(d.meeting(p))))
	}
	return append(fs, d.way(ctx, p, host, addrs)...)
}

const slowLookup = time.Second

func (d *Doctor) resolve(ctx context.Context, host string) (addrs []string, slow time.Duration, err error) {
	if net.ParseIP(host) != nil {
		return []string{host}, 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout())
	defer cancel()
	began := time.Now()
	addrs, err = d.System.LookupHost(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("it has no address")
	}
	if time.Since(began) > slowLookup {
		slow = slowLookup
	}
	return addrs, slow, err
}

// way returns by which interface host is reached. If rank 0 runs here, it checks that an interface
// has the address.
func (d *Doctor) way(ctx context.Context, p *process, host string, addrs []string) []Finding {
	nics, err := d.System.Interfaces()
	if err != nil {
		return []Finding{warning("the interfaces of this host cannot be listed: "+err.Error(), "run it with the rights of the job")}
	}
	local := slices.IndexFunc(addrs, func(a string) bool { return nicOf(nics, net.ParseIP(a)) != "" })
	if p.hosting() && local < 0 {
		return []Finding{problem(fmt.Sprintf("%s (%s) is not an address of this host, and rank 0 runs here: it cannot listen there", host, strings.Join(addrs, ", ")),
			"let MASTER_ADDR be one of "+listed(nics)+", or start rank 0 where it is")}
	}
	if local >= 0 {
		return d.over(p, nicOf(nics, net.ParseIP(addrs[local])), host, addrs)
	}
	from, err := d.source(ctx, addrs[0])
	if err != nil {
		return []Finding{problem(fmt.Sprintf("there is no way to %s (%s): %s", host, addrs[0], innermost(err)), "look at \"ip route get "+addrs[0]+"\": is the network's interface up in this host or container?")}
	}
	return d.over(p, nicOf(nics, from), host, addrs)
}

// virtual contains name prefixes of interfaces that lead only to containers and virtual machines of
// this host.
var virtual = []string{"docker", "virbr", "veth", "br-", "podman", "lxc", "lxd", "vmnet"}

func (d *Doctor) over(p *process, nic, host string, addrs []string) []Finding {
	if slices.ContainsFunc(virtual, func(v string) bool { return strings.HasPrefix(nic, v) }) {
		return []Finding{warning(fmt.Sprintf("%s (%s) is reached over %s, which leads to containers of this host alone", host, strings.Join(addrs, ", "), nic),
			elsewhere(d.meeting(p)))}
	}
	if nic == "" {
		nic = "an interface without a name"
	}
	if addrs[0] == host {
		return []Finding{ok("the route to %s uses interface %s", host, nic)}
	}
	return []Finding{ok("%s is %s, reached over %s", host, strings.Join(addrs, ", "), nic)}
}

// source returns this host's address on the route to addr. Connecting a datagram socket sends
// nothing: it only looks up the route.
func (d *Doctor) source(ctx context.Context, addr string) (net.IP, error) {
	c, err := d.System.Dial(ctx, "udp", net.JoinHostPort(addr, "9"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if at, isUDP := c.LocalAddr().(*net.UDPAddr); isUDP {
		return at.IP, nil
	}
	return nil, errors.New("no address")
}

func nicOf(nics []Interface, ip net.IP) string {
	for _, n := range nics {
		if slices.ContainsFunc(n.Addrs, ip.Equal) {
			return n.Name
		}
	}
	return ""
}

func listed(nics []Interface) string {
	var all []string
	for _, n := range nics {
		for _, a := range n.Addrs {
			if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
				all = append(all, fmt.Sprintf("%s (%s)", a, n.Name))
			}
		}
	}
	if len(all) == 0 {
		return "this host's addresses, of which it has none beyond loopback"
	}
	return strings.Join(all, ", ")
}

// innermost returns the description of err by the operating system, or by the resolver, without the name.
func innermost(err error) string {
	if e, isDNS := errors.AsType[*net.DNSError](err); isDNS {
		return e.Err
	}
	if errno, isErrno := errors.AsType[syscall.Errno](err); isErrno {
		return errno.Error()
	}
	return err.Error()
}
