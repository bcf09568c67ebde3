package launch_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

func TestOutput(t *testing.T) {
	const ranks, n = 4, 1000
	job := start(t, spec(ranks, "count:1000"))
	require.NoError(t, job.ends(t))
	next := map[string]int{}
	for _, line := range job.lines() {
		var rank, i int
		var stream string
		if strings.HasSuffix(line, "] no newline") {
			continue
		}
		_, err := fmt.Sscanf(line, "[%d] %s %d", &rank, &stream, &i)
		require.NoError(t, err, line)
		key := fmt.Sprint(rank, stream)
		require.Equal(t, next[key], i, line)
		next[key]++
	}
	for key, got := range next {
		assert.Equal(t, n, got, key)
	}
	job.await(t, "no newline", ranks)
}

func TestDiscardedOutput(t *testing.T) {
	s := spec(2, "count:20000")
	s.Output = nil
	assert.NoError(t, start(t, s).ends(t))
}

func TestOutputFails(t *testing.T) {
	full := errors.New("disk full")
	s := spec(2, "count:20000") // more than pipes hold: it must be read all the same
	s.Output = writerFunc(func([]byte) (int, error) { return 0, full })
	assert.ErrorIs(t, start(t, s).ends(t), full)
}

// TestPrefixer gives the same text in ever different pieces.
func TestPrefixer(t *testing.T) {
	long := strings.Repeat("y", launch.MaxLine)
	for text, want := range map[string]string{
		"":                        "",
		"\n":                      "> \n",
		"one":                     "> one\n",
		"one\n":                   "> one\n",
		"one\n\ntwo\r\nthree":     "> one\n> \n> two\r\n> three\n",
		long:                      "> " + long + "\n",
		long + "\n":               "> " + long + "\n",
		long + "z\n":              "> " + long + "\n> z\n",
		long + long + "\n" + long: strings.Repeat("> "+long+"\n", 3),
	} {
		for seed := range uint64(20) {
			if got := prefixed(t, text, seed); got != want {
				t.Fatalf("seed %d: %.60q came out as %.60q, want %.60q", seed, text, got, want)
			}
		}
	}
}

func prefixed(t *testing.T, text string, seed uint64) string {
	chance := rand.New(rand.NewPCG(seed, 0))
	var out bytes.Buffer
	add, flush := launch.Prefixer("> ", func(b []byte) {
		assert.True(t, bytes.HasSuffix(b, []byte("\n")), "sent half a line: %.60q", b)
		out.Write(b)
	})
	most := []int{3, 1000, 1 << 20}[seed%3]
	if len(text) > 1000 {
		most = max(most, 1000)
	}
	for len(text) > 0 {
		n := min(len(text), 1+chance.IntN(most))
		add([]byte(text[:n]))
		text = text[n:]
	}
	flush()
	return out.String()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
func (f writerFunc) Close() error                { return nil }

// sayings collects the ranks' lines and lets tests wait for some.
type sayings struct{ testcluster.Log }

func (s *sayings) lines() []string {
	return strings.Split(strings.TrimSuffix(s.String(), "\n"), "\n")
}

// find returns the numbers behind what, in all lines that contain it.
func (s *sayings) find(what string) (numbers []int) {
	for _, line := range s.lines() {
		if _, rest, ok := strings.Cut(line, what); ok {
			number, _ := strconv.Atoi(strings.TrimSpace(rest))
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// await is find, when there are n of them.
func (s *sayings) await(t *testing.T, what string, n int) (numbers []int) {
	t.Helper()
	testcluster.Eventually(t, soon, func() bool {
		numbers = s.find(what)
		return len(numbers) >= n
	}, fmt.Sprintf("%q is printed %d times", what, n))
	return numbers
}
