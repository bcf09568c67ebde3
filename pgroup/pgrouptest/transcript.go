package pgrouptest

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"sync"
)

// transcript collects what the ranks of a job print. With -v it passes lines on as they come;
// otherwise it keeps them, and prints those of the culprit first at the end.
type transcript struct {
	to      io.Writer
	verbose bool

	mu    sync.Mutex // protects ranks
	ranks []bytes.Buffer
}

// mostKept bounds what is kept of one rank, in bytes, from its beginning.
const mostKept = 1 << 20

func newTranscript(to io.Writer, n int, verbose bool) *transcript {
	return &transcript{to: to, verbose: verbose, ranks: make([]bytes.Buffer, n)}
}

// prefix returns the prefix of the lines of a rank.
func prefix(rank int) string { return "[" + strconv.Itoa(rank) + "] " }

// chatter matches what every test binary prints when nothing is wrong.
var chatter = regexp.MustCompile(`^\[\d+\] +(PASS|=== .*|--- SKIP: .*|\S*pgrouptest\S*: *)\n$`)

// Write takes whole lines of one rank.
func (x *transcript) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for line := range bytes.Lines(b) {
		switch rank, ok := rankOf(line); {
		case x.verbose || !ok || rank >= len(x.ranks):
			if !chatter.Match(line) {
				if _, err := x.to.Write(line); err != nil {
					return 0, err
				}
			}
		case chatter.Match(line):
		case x.ranks[rank].Len()+len(line) <= mostKept:
			x.ranks[rank].Write(line)
		}
	}
	return len(b), nil
}

func rankOf(line []byte) (rank int, ok bool) {
	_, err := fmt.Sscanf(string(line[:min(len(line), 16)]), "[%d]", &rank)
	return rank, err == nil
}

// print writes what was kept: the lines of the culprit, if there is one, and then those of the
// others in the order of ranks.
func (x *transcript) print(culprit int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if culprit >= 0 && culprit < len(x.ranks) {
		_, _ = x.ranks[culprit].WriteTo(x.to)
	}
	for rank := range x.ranks {
		_, _ = x.ranks[rank].WriteTo(x.to)
	}
}
