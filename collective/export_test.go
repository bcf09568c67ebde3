package collective

import (
	"net"
	"sync"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/pgroup"
)

// SendSlices sends a message of slices, and returns when it has been written.
func SendSlices(conn link.NowWriter, slices [][]byte) error {
	o := &outbound{conn: conn, now: conn}
	o.change = sync.NewCond(&o.mu)
	go o.write()
	defer o.stop(net.ErrClosed)
	o.send(new(head), vectorOf(slices))
	return o.flush()
}

// Leave has a rank notify others, with these connections, that it leaves.
func Leave(g *pgroup.Group, to []net.Conn) {
	l := newConns(&core{group: g})
	for i, conn := range to {
		o := &outbound{conn: conn}
		o.change = sync.NewCond(&o.mu)
		l.out[connKey{i, forPairs}] = o
		l.wg.Go(o.write)
	}
	l.announceLeave()
	l.close()
}
