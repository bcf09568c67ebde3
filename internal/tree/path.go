package tree

import (
	"fmt"
	"strconv"
	"strings"
)

// maxDepth is the maximum nesting of a config. A deeper one is a cycle, or malicious.
const maxDepth = 1000

// path is the position of a walk: keys and indexes, from the root.
type path struct {
	keys  []string
	depth int // number of steps, including those through pointers
	limit int // maximum depth
}

// in runs walk one step further down, through key. A step through a pointer or an interface has no
// key.
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

// Error says what is wrong with a config, and at which path.
type Error struct {
	// path of the value at fault, in the form of a tensor's name; "" is the config itself
	Path string
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

// String returns the path in a form that is different for each path.
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

// tensorName returns the name of the tensor at this path. It never is a name that safetensors
// reserves.
func (p *path) tensorName() string {
	switch name := p.String(); {
	case len(p.keys) == 0:
		return "tensor" // it is the only tensor
	case name == "__metadata__":
		return "%5F_metadata__"
	default:
		return name
	}
}

func index(i int) string { return strconv.Itoa(i) }

// The keys of objects that represent tensors and special floats.
const (
	tensorKey = "$tensor"
	floatKey  = "$float"
)

// escapeKey returns the encoded form of a user's key.
func escapeKey(key string) string {
	if strings.HasPrefix(key, "$") {
		return "$" + key
	}
	return key
}
