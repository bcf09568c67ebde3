package scenario

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// command is one line of a block.
type command struct {
	t    testing.TB
	verb string
	args []datadriven.CmdArg
}

func parse(t testing.TB, line string) command {
	verb, args, err := datadriven.ParseLine(line)
	require.NoError(t, err)
	return command{t, verb, args}
}

// String returns the command without its session and its timeout.
func (c command) String() string {
	words := []string{c.verb}
	for i, a := range c.args {
		if i > 0 && a.Key != "timeout" {
			words = append(words, a.String())
		}
	}
	return strings.Join(words, " ")
}

// words returns the arguments behind the session.
func (c command) words() (words []string) {
	for i, a := range c.args {
		if i > 0 && a.Vals == nil {
			words = append(words, c.unquoted(a.Key))
		}
	}
	return words
}

// word returns argument i behind the session, or "".
func (c command) word(i int) string {
	if words := c.words(); i < len(words) {
		return words[i]
	}
	return ""
}

// option returns the value of an option, and whether there is one.
func (c command) option(name string) (string, bool) {
	i := slices.IndexFunc(c.args, func(a datadriven.CmdArg) bool { return a.Key == name && a.Vals != nil })
	if i < 0 {
		return "", false
	}
	return c.unquoted(c.args[i].Vals[0]), true
}

// bytes returns the value of an option, nil if there is none.
func (c command) bytes(name string) []byte {
	if v, ok := c.option(name); ok {
		return []byte(v)
	}
	return nil
}

// text returns the value of an option, or "".
func (c command) text(name string) string {
	v, _ := c.option(name)
	return v
}

// number returns the value of an option, or byDefault.
func (c command) number(name string, byDefault int) int {
	v, ok := c.option(name)
	if !ok {
		return byDefault
	}
	return c.parseInt(v)
}

// duration returns the value of an option, or 0.
func (c command) duration(name string) time.Duration {
	v, ok := c.option(name)
	if !ok {
		return 0
	}
	return c.parseDuration(v)
}

func (c command) parseInt(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		c.t.Errorf("%s: %v", c, err)
	}
	return n
}

func (c command) parseDuration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		c.t.Errorf("%s: %v", c, err)
	}
	return d
}

// unquoted returns what a word means: itself, or the string in double quotes, or TEXT*N, which is
// TEXT N times.
func (c command) unquoted(word string) string {
	if text, times, ok := strings.Cut(word, "*"); ok && text != "" {
		return strings.Repeat(c.unquoted(text), c.parseInt(times))
	}
	if !strings.HasPrefix(word, `"`) {
		return word
	}
	v, err := strconv.Unquote(word)
	if err != nil {
		c.t.Errorf("%s: %s: %v", c, word, err)
	}
	return v
}

// quoted returns a value for the output: in double quotes if it could be taken for something else.
func quoted(v string) string {
	switch {
	case len(v) > 100:
		return strconv.Itoa(len(v)) + " bytes"
	case v == "" || strings.ContainsAny(v, " \"") || strconv.Quote(v) != `"`+v+`"`:
		return strconv.Quote(v)
	}
	return v
}

func list[S ~string | ~[]byte](values []S) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = quoted(string(v))
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, " ")
}
