package collective

import (
	"context"
	"net"
	"sync"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/pgroup"
)

// Apart makes a rank share memory as if it were a process of its own.
func Apart(o *Options, process string) { o.process = process }

// ReportPeer makes a rank report, as it opens, that it belongs to a process and has no memory to share.
func ReportPeer(ctx context.Context, g *pgroup.Group, process string) error {
	_, err := pgroup.AllGather(ctx, g.Channel("open"), peerInfo{Process: process})
	return err
}

// ForMemory is the purpose of the connections that pass shared memory.
const ForMemory = forMemory

// SendSlices sends a message of slices, and returns when it has been written.
func SendSlices(conn link.NowWriter, slices [][]byte) error {
	o := &outbound{conn: conn, now: conn}
	o.change = sync.NewCond(&o.mu)
	go o.write()
	defer o.stop(net.ErrClosed)
	o.send(new(head), vectorOf(slices))
	return o.flush()
}
