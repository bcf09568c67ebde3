package safetensors

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is the maximum nesting of values, as in the reference reader. It bounds the stack for
// skipped values.
const maxDepth = 127

// scanner reads JSON as RFC 8259 defines it, without extensions. Package encoding/json would accept
// duplicate names, invalid UTF-8 and unpaired surrogates, and would not report the offset of an
// error. Strings alias text where possible.
type scanner struct {
	text  string // valid UTF-8
	base  int64  // offset of text in the file
	pos   int
	depth int
}

// newScanner returns a scanner for text, which is at offset base of its file.
func newScanner(text string, base int64) (*scanner, error) {
	s := &scanner{text: text, base: base}
	if !utf8.ValidString(text) {
		for i, r := range text {
			if _, n := utf8.DecodeRuneInString(text[i:]); r == utf8.RuneError && n == 1 {
				return nil, s.fail(i, "byte %#02x is not UTF-8", text[i])
			}
		}
	}
	return s, nil
}

func (s *scanner) fail(at int, format string, args ...any) error {
	return invalid(s.base+int64(at), format, args...)
}

// peek skips white space and returns the next byte, or 0, which no JSON contains, at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// take reads c, which must be the next byte.
func (s *scanner) take(c byte, what string) error {
	if s.peek() != c {
		return s.unexpected(what)
	}
	s.pos++
	return nil
}

// unexpected returns the error that the scanner expected what at its position.
func (s *scanner) unexpected(what string) error {
	if s.peek() == 0 && s.pos == len(s.text) {
		return s.fail(s.pos, "ends where %s should be", what)
	}
	r, _ := utf8.DecodeRuneInString(s.text[s.pos:])
	return s.fail(s.pos, "%q is where %s should be", r, what)
}

// end returns an error unless only white space follows.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.text) {
		return s.unexpected("the end")
	}
	return nil
}

// object reads an object. It calls field with each key and its offset, and field reads the value.
func (s *scanner) object(what string, field func(key string, at int) error) error {
	return s.list('{', '}', what, func() error {
		if s.peek() != '"' {
			return s.unexpected("a name in " + what + ", a string,") // built only if it is needed
		}
		at := s.pos
		key, err := s.string(what)
		if err != nil {
			return err
		}
		if err := s.take(':', "the : after a name"); err != nil {
			return err
		}
		return field(key, at)
	})
}

// array reads an array. It calls item to read each value.
func (s *scanner) array(what string, item func() error) error { return s.list('[', ']', what, item) }

func (s *scanner) list(first, last byte, what string, item func() error) error {
	if err := s.take(first, what); err != nil {
		return err
	}
	if s.depth++; s.depth > maxDepth {
		return s.fail(s.pos-1, "values are nested deeper than %d", maxDepth)
	}
	defer func() { s.depth-- }()
	if s.peek() == last {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.peek() == last {
			s.pos++
			return nil
		}
		if s.peek() != ',' {
			return s.unexpected("a comma or the end of " + what)
		}
		s.pos++
	}
}

// string reads a string.
func (s *scanner) string(what string) (string, error) {
	if s.peek() != '"' {
		return "", s.unexpected(what + ", a string,")
	}
	s.pos++
	begin := s.pos
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case c == '"':
			s.pos++
			return s.text[begin : s.pos-1], nil
		case c == '\\':
			return s.escaped(begin)
		case c < ' ':
			return "", s.fail(s.pos, "control character %#02x in a string", c)
		}
	}
	return "", s.fail(begin, "a string has no end")
}

// escaped reads the rest of the string that began at begin. The next byte is an escape.
func (s *scanner) escaped(begin int) (string, error) {
	var b strings.Builder
	for from := begin; s.pos < len(s.text); {
		switch c := s.text[s.pos]; {
		case c == '"':
			b.WriteString(s.text[from:s.pos])
			s.pos++
			return b.String(), nil
		case c == '\\':
			b.WriteString(s.text[from:s.pos])
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
			from = s.pos
		case c < ' ':
			return "", s.fail(s.pos, "control character %#02x in a string", c)
		default:
			s.pos++
		}
	}
	return "", s.fail(begin, "a string has no end")
}

const (
	escapes   = `"\/bfnrt`
	unescaped = "\"\\/\b\f\n\r\t"
)

// escape reads an escape, or two that form one character.
func (s *scanner) escape() (rune, error) {
	at := s.pos
	if s.pos += 2; s.pos <= len(s.text) {
		if i := strings.IndexByte(escapes, s.text[at+1]); i >= 0 {
			return rune(unescaped[i]), nil
		}
		if s.text[at+1] != 'u' {
			return 0, s.fail(at, "an escape that JSON does not have")
		}
	}
	r, ok := s.hex()
	if ok && utf16.IsSurrogate(r) {
		low := rune(-1)
		if strings.HasPrefix(s.text[s.pos:], `\u`) {
			s.pos += 2
			low, ok = s.hex()
		}
		r = utf16.DecodeRune(r, low)
		ok = ok && r != utf8.RuneError
	}
	if !ok {
		return 0, s.fail(at, "an escape that is no character")
	}
	return r, nil
}

// hex reads four hexadecimal digits.
func (s *scanner) hex() (r rune, ok bool) {
	if s.pos+4 > len(s.text) {
		s.pos = len(s.text)
		return 0, false
	}
	for range 4 {
		d, err := strconv.ParseUint(s.text[s.pos:s.pos+1], 16, 8)
		if err != nil {
			return 0, false
		}
		r = r<<4 | rune(d)
		s.pos++
	}
	return r, true
}

// number reads a number and returns its text.
func (s *scanner) number(what string) (string, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return "", s.unexpected(what + ", a number,")
	}
	begin := s.pos
	s.digit('-')
	ok := s.digit('0') || s.digits()
	if ok && s.digit('.') {
		ok = s.digits()
	}
	if ok && (s.digit('e') || s.digit('E')) {
		_ = s.digit('+') || s.digit('-')
		ok = s.digits()
	}
	if next := s.pos; !ok || next < len(s.text) && s.text[next] >= '0' && s.text[next] <= '9' {
		return "", s.fail(begin, "a number that JSON does not have")
	}
	return s.text[begin:s.pos], nil
}

// digit reads c if it is the next byte.
func (s *scanner) digit(c byte) bool {
	if s.pos < len(s.text) && s.text[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// digits reads digits, and reports whether there was at least one.
func (s *scanner) digits() bool {
	begin := s.pos
	for s.pos < len(s.text) && s.text[s.pos] >= '0' && s.text[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > begin
}

// natural reads an integer from 0 to most.
func (s *scanner) natural(what string, most uint64) (uint64, error) {
	text, err := s.number(what)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return 0, s.fail(s.pos-len(text), "%s is %s, which is no integer from 0 to %d", what, shorten(text), most)
	}
	return n, nil
}

func shorten(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// skip reads a value of any kind.
func (s *scanner) skip() error {
	switch c := s.peek(); {
	case c == '{':
		return s.object("an object", func(string, int) error { return s.skip() })
	case c == '[':
		return s.array("an array", s.skip)
	case c == '"':
		_, err := s.string("a value")
		return err
	case c == '-' || c >= '0' && c <= '9':
		return s.skipNumber()
	}
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(s.text[s.pos:], word) {
			s.pos += len(word)
			return nil
		}
	}
	return s.unexpected("a value")
}

// skipNumber reads a number that fits in a float64, since other readers reject larger ones.
func (s *scanner) skipNumber() error {
	text, err := s.number("a value")
	if err != nil {
		return err
	}
	if _, err := strconv.ParseFloat(text, 64); err != nil {
		return s.fail(s.pos-len(text), "number %s is out of range", shorten(text))
	}
	return nil
}
