package core

import (
	"container/list"
	"slices"
	"strings"
)

// watchers are the calls that wait for changes, by the prefix that they watch, so that a change
// finds the watches of its key without a look at the others. They are a radix tree. Below a node
// are the prefixes that begin with the node's prefix; no two children of a node continue with the
// same byte. A node without watches, except the root, has at least two children, so the tree has at
// most twice as many nodes as watched prefixes.
type watchers struct {
	root watchNode
	n    int // calls
}

type watchNode struct {
	prefix   string // from the root on
	parent   *watchNode
	children []*watchNode // by the byte that follows prefix
	watchers list.List    // of *watcher, in the order in which they came
}

// add adds w. The tree keeps w.prefix.
func (ws *watchers) add(w *watcher) {
	w.node = ws.root.insert(w.prefix)
	w.place = w.node.watchers.PushBack(w)
	ws.n++
}

// remove removes w, and the nodes that are no longer needed.
func (ws *watchers) remove(w *watcher) {
	w.node.watchers.Remove(w.place)
	ws.n--
	w.node.trim()
}

// take removes and returns the watches whose prefixes key has: those of the shortest prefix first,
// those of one prefix in the order in which they came.
func (ws *watchers) take(key string) (taken []*watcher) {
	for n := &ws.root; n != nil; n = n.next(key) {
		for p := n.watchers.Front(); p != nil; p = p.Next() {
			taken = append(taken, p.Value.(*watcher))
		}
		n.watchers.Init()
	}
	for _, w := range taken {
		w.node.trim()
	}
	ws.n -= len(taken)
	return taken
}

// next returns the child of n on the path to key, or nil.
func (n *watchNode) next(key string) *watchNode {
	if i, ok := n.find(key); ok && strings.HasPrefix(key[len(n.prefix):], n.children[i].prefix[len(n.prefix):]) {
		return n.children[i]
	}
	return nil
}

// find returns the index of the child of n that continues as key does; key must begin with n's
// prefix.
func (n *watchNode) find(key string) (at int, ok bool) {
	from := len(n.prefix)
	if len(key) == from {
		return 0, false
	}
	return slices.BinarySearchFunc(n.children, key[from], func(c *watchNode, b byte) int { return int(c.prefix[from]) - int(b) })
}

// insert returns the node of prefix, which must begin with n's prefix, and makes it if needed.
func (n *watchNode) insert(prefix string) *watchNode {
	for len(prefix) > len(n.prefix) {
		i, ok := n.find(prefix)
		if !ok {
			n.children = slices.Insert(n.children, i, &watchNode{prefix: prefix, parent: n})
			return n.children[i]
		}
		c := n.children[i]
		if same := common(c.prefix, prefix, len(n.prefix)); same < len(c.prefix) {
			c = &watchNode{prefix: c.prefix[:same], parent: n, children: []*watchNode{c}}
			c.children[0].parent, n.children[i] = c, c
		}
		n = c
	}
	return n
}

// common returns the length of the common prefix of a and b, of which from bytes are known to be
// equal.
func common(a, b string, from int) int {
	for from < min(len(a), len(b)) && a[from] == b[from] {
		from++
	}
	return from
}

// trim removes n if it has no watches and less than two children; its parent gets the child. A
// removed node has no parent.
func (n *watchNode) trim() {
	p := n.parent
	if p == nil || n.watchers.Len() > 0 || len(n.children) > 1 {
		return
	}
	n.parent = nil
	i, _ := p.find(n.prefix)
	if len(n.children) == 1 {
		p.children[i], n.children[0].parent = n.children[0], p
		return
	}
	p.children = slices.Delete(p.children, i, i+1)
	p.trim()
}
