package link_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }
