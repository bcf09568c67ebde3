package scenario_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

func TestPipe(t *testing.T) { scenario.Run(t, "testdata", scenario.Pipe) }

func TestPrefix(t *testing.T) { scenario.Run(t, "testdata", scenario.Prefix) }
