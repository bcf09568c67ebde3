package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// plainJSON writes JSON to w and escapes characters that would control a terminal: package json
// escapes only those in ASCII. Each Write must contain whole characters.
type plainJSON struct{ w io.Writer }

// Write implements io.Writer.
func (p plainJSON) Write(b []byte) (int, error) {
	if !bytes.ContainsFunc(b, hidden) {
		return p.w.Write(b)
	}
	out := make([]byte, 0, 2*len(b))
	for _, r := range string(b) {
		if !hidden(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	_, err := p.w.Write(out)
	return len(b), err
}

// hidden reports whether r is an unprintable character beyond ASCII's control characters. The line
// ends of JSON stay.
func hidden(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

// printJSON prints v as one indented JSON value, for programs.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(plainJSON{w})
	e.SetIndent("", "  ")
	return e.Encode(v)
}
