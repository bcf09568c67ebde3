package link

import (
	"net"
	"time"
)

const (
	PollTime  = pollTime
	LongYield = longYield
	PollPause = pollPause
)

// Polls decides when readers poll.
type Polls struct{ poller }

func (p *Polls) Yield(start *time.Time) bool       { return p.yield(start) }
func (p *Polls) Yielded(took time.Duration)        { p.note(time.Now(), took) }
func (p *Polls) Conn(c net.Conn) (net.Conn, error) { return newPollingConn(c, &p.poller) }
