package storetest

import (
	"fmt"
	"testing"

	"github.com/muster-pg/muster/wire"
)

var channelFeatures = []Feature{Collect, Streams, Channels}

var channelChecks = []check{
	{"a hundred channels and streams, one after another", channelMany, channelFeatures},
}

func on(channel string, c wire.Contribution) wire.Contribution {
	c.Channel = channel
	return c
}

func channelMany(t *testing.T, w *world) {
	ranks := w.group(2)
	each := together(2, func(n int) ([][]byte, error) {
		r := ranks[n]
		for i := range 100 {
			c := r.asMember()
			c.Channel = fmt.Sprint("channel ", i)
			if err := r.collect(w.ctx, on(c.Channel, barrier(1))).err; err != nil {
				return nil, fmt.Errorf("channel %d: %w", i, err)
			}
			if n == 0 {
				if err := r.send(w.ctx, c.Channel, "x"); err != nil {
					return nil, fmt.Errorf("channel %d: %w", i, err)
				}
			} else if err := r.recv(w.ctx, c.Channel, 1).err; err != nil {
				return nil, fmt.Errorf("channel %d: %w", i, err)
			}
			if err := r.CloseChannel(w.ctx, c); err != nil {
				return nil, fmt.Errorf("channel %d: %w", i, err)
			}
		}
		return nil, nil
	})
	allGood(t, each)
}
