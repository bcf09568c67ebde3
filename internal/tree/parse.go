package tree

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// node is a value of parsed JSON.
type node struct {
	kind byte   // { [ " 0 t n
	raw  string // its JSON
	text string // the value of a string
	keys []string
	kids []*node
}

// marker returns the value of an object that has only this key, such as "$tensor".
func (n *node) marker(key string) (text string, ok bool) {
	if n.kind == '{' && len(n.keys) == 1 && n.keys[0] == key && n.kids[0].kind == '"' {
		return n.kids[0].text, true
	}
	return "", false
}

// parse parses one JSON value. It rejects trailing data, duplicate keys, and too much nesting.
func (p *path) parse(text []byte) (*node, error) {
	if !utf8.Valid(text) {
		return nil, p.errorf("the JSON is not UTF-8")
	}
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		return nil, p.errorf("%w", err)
	}
	r := parser{path: p, json: string(text), dec: json.NewDecoder(bytes.NewReader(text))}
	r.dec.UseNumber()
	return r.value()
}

// parser reads valid JSON.
type parser struct {
	*path
	json string
	dec  *json.Decoder
}

func (r *parser) value() (*node, error) {
	between := r.json[r.dec.InputOffset():]
	start := len(r.json) - len(strings.TrimLeft(between, " \t\r\n,:"))
	token, err := r.dec.Token()
	if err != nil {
		return nil, r.errorf("%w", err)
	}
	n := &node{kind: r.json[start]}
	switch token := token.(type) {
	case json.Delim:
		err = r.inside(n)
	case json.Number:
		n.kind = '0'
	case string:
		n.text = token
	case bool:
		n.kind = 't'
	}
	n.raw = r.json[start:r.dec.InputOffset()]
	return n, err
}

// inside reads the contents of an object or an array, and its end.
func (r *parser) inside(n *node) error {
	seen := map[string]bool{}
	for i := 0; r.dec.More(); i++ {
		key := index(i)
		if n.kind == '{' {
			var err error
			if key, err = r.key(seen); err != nil {
				return err
			}
			n.keys = append(n.keys, key)
		}
		err := r.in(func() error {
			kid, err := r.value()
			n.kids = append(n.kids, kid)
			return err
		}, key)
		if err != nil {
			return err
		}
	}
	if _, err := r.dec.Token(); err != nil {
		return r.errorf("%w", err)
	}
	return nil
}

func (r *parser) key(seen map[string]bool) (string, error) {
	token, err := r.dec.Token()
	if err != nil {
		return "", r.errorf("%w", err)
	}
	key, ok := token.(string)
	switch {
	case !ok:
		return "", r.errorf("%v is no key", token)
	case seen[key]:
		return "", r.errorf("the key %q is there twice", key)
	}
	seen[key] = true
	return key, nil
}
