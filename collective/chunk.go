package collective

// The chunks of a slice are parts whose lengths differ by an element at most.

// span is where the ith of n chunks of x begins, and how many bytes it has.
func (c *call) span(x []byte, i, n int) (at, length int) {
	count := len(x) / c.elem
	at = i * count / n * c.elem
	return at, (i+1)*count/n*c.elem - at
}

// chunk is the ith of n chunks of x.
func (c *call) chunk(x []byte, i, n int) []byte {
	at, length := c.span(x, i, n)
	return x[at:][:length:length]
}

// longest is how many bytes the longest of n chunks of x has.
func (c *call) longest(x []byte, n int) int { return (len(x)/c.elem + n - 1) / n * c.elem }
