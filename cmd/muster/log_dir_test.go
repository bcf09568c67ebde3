package main_test

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	main "github.com/muster-pg/muster/cmd/muster"
)

// TestJobsDoNotShareLogs begins jobs whose directories of logs have one name, as those of processes
// with one id in several containers do.
func TestJobsDoNotShareLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs", "20260101-120000-1")
	var mu sync.Mutex
	var jobs sync.WaitGroup
	made := map[string]bool{}
	for range 8 {
		jobs.Go(func() {
			own, err := main.PrepareLogs(dir)
			mu.Lock()
			defer mu.Unlock()
			assert.NoError(t, err)
			made[own] = true
		})
	}
	jobs.Wait()
	require.Len(t, made, 8)
	require.Contains(t, made, dir)
}
