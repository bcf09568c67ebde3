package tree

import (
	"fmt"
	"strconv"
	"strings"
)

// maxDepth is how deep a config may be nested. What is deeper is a cycle, or an attack.
const maxDepth = 1000

// A path is where a walk is: keys and indexes, from the root.
type path struct {
	keys  []string
	depth int // steps down, those through pointers too
	limit int // of depth
}

// in is the walk one step further down, through key; without one where that is a pointer or an
// interface.
func (p *path) in(walk func() error, key ...string) error {
	if p.depth == p.limit {
		return p.errorf("nested deeper than %d: is it a cycle?", p.limit)
	}
	p.keys = append(p.keys, key...)
	p.depth++
	err := walk()
	p.depth--
	p.keys = p.keys[:len(p.keys)-len(key)]
	return err
}

// An Error says what is wrong with a config, and at which path.
type Error struct {
	Path string // of the value at fault, as the name of a tensor is; "" is the config itself
	Err  error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("tree: %v", e.Err)
	}
	return fmt.Sprintf("tree: %s: %v", e.Path, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func (p *path) errorf(format string, args ...any) error {
	const most = 200 // a path may be as long as the config
	name := strings.ToValidUTF8(p.String(), "\ufffd")
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most/2], "") + "…" + strings.ToValidUTF8(name[len(name)-most/2:], "")
	}
	return &Error{Path: name, Err: fmt.Errorf(format, args...)}
}

// String is the path as no other is written.
func (p *path) String() string {
	var b strings.Builder
	for i, key := range p.keys {
		if i > 0 {
			b.WriteByte('.')
		}
		if key == "" {
			b.WriteByte('%')
		}
		b.WriteString(escapes.Replace(key))
	}
	return b.String()
}

var escapes = strings.NewReplacer("%", "%25", ".", "%2E")

// tensorName is the name of the tensor here. It is none that safetensors reserves.
func (p *path) tensorName() string {
	switch name := p.String(); {
	case len(p.keys) == 0:
		return "tensor" // the only one that there is
	case name == "__metadata__":
		return "%5F_metadata__"
	default:
		return name
	}
}

func index(i int) string { return strconv.Itoa(i) }

// Keys of objects that stand for something else.
const (
	tensorKey = "$tensor"
	floatKey  = "$float"
)

// escapeKey is how a key of a user's is written.
func escapeKey(key string) string {
	if strings.HasPrefix(key, "$") {
		return "$" + key
	}
	return key
}
