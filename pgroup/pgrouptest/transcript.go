package pgrouptest

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"sync"
)

// transcript collects what the processes of a job print. With -v it passes lines on as they come;
// otherwise it keeps them, and prints those of the culprit first at the end.
type transcript struct {
	verbose bool

	mu    sync.Mutex // protects the fields below
	to    io.Writer
	ranks []bytes.Buffer
}

// mostKept bounds what is kept of one process, in bytes, from its beginning.
const mostKept = 1 << 20

func newTranscript(to io.Writer, n int, verbose bool) *transcript {
	return &transcript{to: to, verbose: verbose, ranks: make([]bytes.Buffer, n)}
}

// chatter matches what every test binary prints when nothing is wrong.
var chatter = regexp.MustCompile(`^ *(PASS|=== .*|--- SKIP: .*|\S*pgrouptest\S*: *|coverage: .* of statements.*)\n$`)

// registers matches what the Go runtime adds to the stacks of a process that SIGQUIT ends, and that says
// nothing about why it hangs.
var registers = regexp.MustCompile(`^([re][a-z0-9]+|r\d+|[cfg]s|lr|sp|pc|fault) +0x[0-9a-f]+\n$|^PC=0x|^goroutine 0 |^\n$`)

// Write takes whole lines of a process, each after "[rank] ".
func (x *transcript) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for line := range bytes.Lines(b) {
		head, text, _ := bytes.Cut(line, []byte("] "))
		rank, err := strconv.Atoi(string(head[1:]))
		if err != nil {
			return 0, err
		}
		switch {
		case chatter.Match(text) || registers.Match(text):
		case x.verbose:
			_, _ = x.to.Write(line)
		case x.ranks[rank].Len()+len(line) <= mostKept:
			x.ranks[rank].Write(line)
		}
	}
	return len(b), nil
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
