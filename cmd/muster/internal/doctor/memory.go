package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

const (
	littleShared = 1 << 30   // of /dev/shm; the default of containers is 64 MiB
	littleMemory = 256 << 20 // of available memory
)

// memory checks the shared memory for the ranks of one host.
func (d *Doctor) memory(context.Context, *process) (fs []Finding) {
	switch err := d.System.Memfd(); {
	case errors.Is(err, errors.ErrUnsupported):
		fs = append(fs, ok("this system has no sealed shared memory: ranks of one host use TCP"))
	case err != nil:
		fs = append(fs, warning(fmt.Sprintf("there is no shared memory of muster's kind (%v): ranks of one host use TCP", err), "let the container's seccomp profile have memfd_create; it needs Linux 5.1"))
	default:
		fs = append(fs, ok("shared memory works (memfd)"))
	}
	if err := d.System.Room(littleMemory); err != nil {
		fs = append(fs, problem(strings.TrimPrefix(err.Error(), "shm: "), "shared memory counts against that limit: give the container more memory (--memory, resources.limits)"))
	}
	return append(fs, d.shared()...)
}

// shared checks /dev/shm, which other programs need and muster does not.
func (d *Doctor) shared() []Finding {
	size, free, err := d.System.SharedSize()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case err != nil:
		return []Finding{warning(fmt.Sprintf("there is no /dev/shm (%s)", innermost(err)), "muster does without, but PyTorch's loaders, NCCL and MPI do not: mount a tmpfs there")}
	case min(size, free) < littleShared:
		return []Finding{warning(fmt.Sprintf("/dev/shm has %s, of which %s are free", bytesText(size), bytesText(free)),
			"muster does without it, but PyTorch's loaders, NCCL and MPI do not: docker run --shm-size=8g or --ipc=host, an emptyDir with medium Memory in Kubernetes; or remove what is left there")}
	}
	return []Finding{ok("/dev/shm has %s", bytesText(size))}
}

// bytesText formats a number of bytes with its unit.
func bytesText(n uint64) string {
	for _, u := range []struct {
		name string
		size uint64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.size)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// spareFiles is how many files a rank has open besides its connections.
const spareFiles = 64

// files checks the limit of open files of a rank: one for each other rank in both directions, and
// on the store's host one for each client.
func (d *Doctor) files(_ context.Context, p *process) (fs []Finding) {
	size := 1
	if p.config != nil {
		size = p.config.Size
	} else if n, isSet := d.number("WORLD_SIZE"); isSet {
		size = max(n, 1)
	}
	limit, err := d.System.OpenFiles()
	need := uint64(3*size + spareFiles)
	switch {
	case err != nil:
		fs = append(fs, warning("the limit of open files cannot be read: "+err.Error(), "look at ulimit -n"))
	case limit < need:
		fs = append(fs, problem(fmt.Sprintf("%d files may be open, and %d ranks take up to %d", limit, size, need),
			fmt.Sprintf("ulimit -Hn %d where ranks start: LimitNOFILE= of systemd, --ulimit nofile= of docker, /etc/security/limits.conf", need)))
	default:
		fs = append(fs, ok("enough files may be open (ulimit -Hn) for %s", count(size, "rank")))
	}
	if queue := d.System.Backlog(); p.hosting() && queue > 0 && queue < size {
		fs = append(fs, warning(fmt.Sprintf("%d connections may wait to be accepted, and %d ranks come at once: some will come a second later", queue, size), fmt.Sprintf("sysctl -w net.core.somaxconn=%d", size)))
	}
	return fs
}
