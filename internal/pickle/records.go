package pickle

import (
	"strconv"

	"github.com/muster-pg/muster/tensor"
)

type (
	// Object is an object of a class, or what a call of a function returns: what the pickle says about it. None
	// of its code was run.
	Object struct {
		Name  string // of the class or function
		Args  Tuple  // of the call
		State any    // that the pickle sets; nil if it sets none
	}
	// Class is a class or a constant of a module, such as torch.float32.
	Class struct {
		Name  string
		DType tensor.DType // of a dtype or a storage of torch
	}
)

// persistentID is the Name of the Object of a value that is not in the pickle. Its id is the argument.
const persistentID = "persistent id"

// object is an Object while the pickle runs.
type object struct {
	name  string
	args  *tuple
	state any
	built bool
	node
}

// ParseObjects is Parse of a pickle that has objects as well: those that names make, such as
// "collections.deque", and what persistent ids stand for, are Objects. Names are refused that are not
// among these, unless Parse accepts them; and an Object may be the key of a Dict, distinct from all others.
func ParseObjects(b []byte, names map[string]bool) (any, error) {
	m := &machine{names: names}
	m.persistent = func(id any) (any, error) {
		return &object{name: persistentID, args: &tuple{items: []any{id}}}, m.spend(objectSize + listSize)
	}
	return parse(b, m)
}

// pushObject pushes the object of a name that ParseObjects accepts.
func (m *machine) pushObject(g *global, args any) error {
	t, ok := args.(*tuple)
	if !ok {
		return m.malformed("%s is called with a %s", g.name, kind(args))
	}
	return m.push(&object{name: g.name, args: t}, objectSize)
}

// buildObject sets the state of an object, once.
func (m *machine) buildObject(o *object, state any) error {
	if o.built {
		return m.malformed("the state of a %s is set twice", o.name)
	}
	o.state, o.built = state, true
	return nil
}

func (m *machine) finishObject(o *object, depth int) (any, size, error) {
	parts := []any{o.args, o.state}
	return m.finishItems(&o.node, parts, depth, func() any { return &Object{o.name, parts[0].(Tuple), parts[1]} })
}

// objectKey returns the text of a key that is an object: no other value has it.
func (m *machine) objectKey() string {
	m.objects++
	return "o" + strconv.Itoa(m.objects)
}
