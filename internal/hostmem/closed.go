package hostmem

// Closed has the names of the channels that a rank has closed. It is not safe for concurrent use.
//
// A rank uses memory for a channel only if it has closed none of that name. A record's sequence
// number says nothing about the use of the name, and ranks may be in different uses: one of them
// still reads the broadcasts of a channel which another has closed and begun anew. A rank whose
// channel is closed has turned its memory off, and joins no other of that name. So while memory
// decides, all ranks are in their first use; they vote on the same channel at the store, as that frees
// no channel before a rank that has voted on it has closed it.
type Closed struct{ names map[string]struct{} }

// maxClosed bounds what Closed keeps. From then on it has all names.
const maxClosed = 4096

// Add adds a name.
func (c *Closed) Add(name string) {
	if c.names == nil {
		c.names = map[string]struct{}{}
	}
	if len(c.names) < maxClosed {
		c.names[name] = struct{}{}
	}
}

// Has reports whether this rank may have closed a channel with that name.
func (c *Closed) Has(name string) bool {
	_, ok := c.names[name]
	return ok || len(c.names) == maxClosed
}
