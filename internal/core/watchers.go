package core

import (
	"container/list"
	"slices"
	"strings"
)

// watchers are the calls that wait for changes, by the prefix that they watch, so that a change finds those whose prefixes its key has
// without a look at the others. It is a radix tree: below a node are the prefixes that begin with the node's own, and no two
// children of a node go on with the same byte. A node without watchers has two children at least, but for the root, so that
// there are at most twice as many nodes as prefixes that are watched.
type watchers struct {
	root watchNode
	n    int
}

type watchNode struct {
	prefix   string // whole, from the root on
	parent   *watchNode
	children []*watchNode // by the byte that follows this prefix
	watchers list.List    // of *watcher, in the order in which they came
}

// add puts w into the tree, which keeps its prefix.
func (ws *watchers) add(w *watcher) {
	w.node = ws.root.insert(w.prefix)
	w.place = w.node.watchers.PushBack(w)
	ws.n++
}

// remove takes w out, and the nodes that are there for nothing else.
func (ws *watchers) remove(w *watcher) {
	w.node.watchers.Remove(w.place)
	ws.n--
	w.node.trim()
}

// take takes out those whose prefixes key has: the shortest first, those of one prefix in the order in which they came.
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

// next is the child of n that is on the way to key; nil if there is none.
func (n *watchNode) next(key string) *watchNode {
	if i, ok := n.find(key); ok && strings.HasPrefix(key[len(n.prefix):], n.children[i].prefix[len(n.prefix):]) {
		return n.children[i]
	}
	return nil
}

// find is the place among n's children of the one that goes on as key does, which begins with n's prefix.
func (n *watchNode) find(key string) (at int, ok bool) {
	from := len(n.prefix)
	if len(key) == from {
		return 0, false
	}
	return slices.BinarySearchFunc(n.children, key[from], func(c *watchNode, b byte) int { return int(c.prefix[from]) - int(b) })
}

// insert is the node of prefix, which begins with n's.
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

// common is how many bytes a and b begin with together; from of them are known.
func common(a, b string, from int) int {
	for from < min(len(a), len(b)) && a[from] == b[from] {
		from++
	}
	return from
}

// trim takes n out if it has no watchers and fewer than two children; its parent gets the one that it has. A node that has been taken
// out has no parent.
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
