package tcpstore_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// TestMuchThatTakesLittle checks that other clients do not have to wait for all of the many short
// requests that one client sends at once.
func TestMuchThatTakesLittle(t *testing.T) {
	const asked = 60000
	s := current(t)
	for i := range 400 {
		require.NoError(t, s.Set(s.ctx, fmt.Sprint(i), nil, nil))
	}
	greedy, other := s.client(t), s.client(t)
	reqs := make([]tcpwire.Request, asked)
	for i := range reqs {
		reqs[i].Op = tcpwire.OpGetNumKeys
	}
	greedy.send(reqs...)
	greedy.reply(tcpwire.OpGetNumKeys, 0)
	other.works()
	require.NoError(t, greedy.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	rest, _ := io.ReadAll(greedy)
	require.Less(t, len(greedy.buf)+len(rest), 8*asked/2)
}
