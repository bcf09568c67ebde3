package gather_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ranksVar sets how many ranks TestManyRanks has. With 2000 it takes 25 s on two cores.
const ranksVar = "MUSTER_TEST_RANKS"

// TestManyRanks gathers from more ranks than the number of handshakes that a mesh runs at a time
// for unauthenticated peers. All of them connect to the first rank at once.
func TestManyRanks(t *testing.T) {
	n := 300
	if s := os.Getenv(ranksVar); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	for _, w := range []way{{name: "TCP", apart: true}, {name: "memory"}} {
		t.Run(w.name, func(t *testing.T) {
			job{way: w, n: n, span: 3 * time.Minute}.run(t, func(r *rank) {
				r.gathers(ranks, 0, 4)
				assert.NoError(r, r.group.Barrier(r.ctx), fmt.Sprint("rank ", r.me()))
			})
		})
	}
}
