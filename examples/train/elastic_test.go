package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

var checksum = regexp.MustCompile(`weights: sha256 (\w+)`)

// TestElastic trains with three workers of which each is killed now and then, and starts again, as under
// muster run --elastic. The weights are those of a single process that nothing disturbs.
func TestElastic(t *testing.T) {
	const flags = "-deterministic -steps 100"
	alone := checksum.FindStringSubmatch(run(t, 1, flags))
	require.NotNil(t, alone)

	at := served(t)(0).Address
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out testcluster.Log
	var mu sync.Mutex
	killed := 0
	var all sync.WaitGroup
	for slot := range 3 {
		all.Go(func() {
			for n := 0; ; n++ { // until it has finished
				life := "4s"
				if slot == 0 && n == 0 {
					life = "500ms" // before the others can have finished
				}
				job, err := launch.Start(ctx, launch.Spec{
					N: 1, Path: self, Output: &out, ErrOutput: &out, ParentPipe: true, Grace: -1,
					Env: func(int) []string {
						return []string{
							"MUSTER_STORE=" + at, "MUSTER_JOB=digits", fmt.Sprintf("MUSTER_WORKER=%d-%d", slot, n), "MUSTER_ELASTIC=1:3",
							"GORACE=atexit_sleep_ms=0", fmt.Sprintf("%s=%s -elastic -pause 20ms -life %s", arguments, flags, life),
						}
					},
				})
				if !assert.NoError(t, err) {
					return
				}
				err = job.Wait()
				if e, ok := errors.AsType[*launch.ExitError](err); ok && e.Signal != 0 {
					mu.Lock()
					killed++
					mu.Unlock()
					continue
				}
				assert.NoError(t, err)
				return
			}
		})
	}
	all.Wait()
	require.Positive(t, killed, out.String())
	sums := checksum.FindAllStringSubmatch(out.String(), -1)
	require.NotEmpty(t, sums, out.String())
	for _, sum := range sums {
		require.Equal(t, alone[1], sum[1], out.String())
	}
}
