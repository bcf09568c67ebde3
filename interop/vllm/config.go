package vllm

import (
	"cmp"
	"fmt"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

const (
	defaultName       = "vllm"
	defaultTimeout    = 5 * time.Minute // as vLLM's store_timeout
	defaultExpiration = time.Hour       // as vLLM's data_expiration_seconds
	lease             = 10 * time.Second
)

// Config says who this process is, and which store the group uses.
type Config struct {
	Name  string       // in errors; default "vllm"
	Rank  int          // 0 ≤ Rank < Size
	Size  int          // ≥ 1: vLLM's world_size
	Store *store.Store // Close of the group leaves it open
	// Shared is for one of several groups of a store: Store is a prefix of it (store.Prefix), and
	// Python ranks use a dist.PrefixStore, which does not count its ranks. So Join does not wait for the other
	// ranks. Without Shared, the store is for this group alone.
	Shared bool

	Timeout time.Duration // of Join, and of an operation whose ctx has no deadline; default 5 min
	// DataExpiration is how long the store keeps what this rank sends; default 1 h. A store with
	// times to live expires it; otherwise this rank deletes it when it sends again, as in vLLM.
	DataExpiration time.Duration
}

// withDefaults validates c and fills in the defaults.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Size == 0:
		return c, invalid("Config.Size is 0: a group of one has Size 1")
	case c.Size < 0:
		return c, invalid("Config.Size is %d", c.Size)
	case c.Rank < 0 || c.Rank >= c.Size:
		return c, invalid("Config.Rank is %d, with a Config.Size of %d: ranks are 0 to %d", c.Rank, c.Size, c.Size-1)
	case c.Store == nil:
		return c, invalid("Config.Store is nil: %d ranks need one to meet", c.Size)
	case c.Timeout < 0:
		return c, invalid("Config.Timeout is %v", c.Timeout)
	case c.DataExpiration < 0:
		return c, invalid("Config.DataExpiration is %v", c.DataExpiration)
	}
	c.Name = cmp.Or(c.Name, defaultName)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.DataExpiration = cmp.Or(c.DataExpiration, defaultExpiration)
	return c, nil
}

// argumentError is an error that matches pgroup.ErrInvalid.
type argumentError string

func (e argumentError) Error() string        { return string(e) }
func (e argumentError) Is(target error) bool { return target == pgroup.ErrInvalid }

func invalid(format string, args ...any) error {
	return argumentError("vllm: " + fmt.Sprintf(format, args...))
}
