package testcluster_test

import (
	"context"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

// leak makes the test binary a child that leaves something over.
const leak = "TESTCLUSTER_LEAK"

func TestMain(m *testing.M) {
	testcluster.Children{"echo": echoChild}.Run()
	if os.Getenv(leak) != "" {
		launch.ExitWithParent() // what listens for the parent's end does not count
	}
	testcluster.Leaks(m)
}

// echoChild keeps all its threads busy, so that there is something to stop.
func echoChild(_ context.Context, addr string) error {
	for range 3 {
		go func() {
			for n := 0; ; n++ {
				_ = n
			}
		}()
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	_, err = io.Copy(c, c)
	return err
}

// startChild starts a process that echoes what it is sent over the connection.
func startChild(t *testing.T) (*launch.Process, net.Conn) {
	l := testcluster.Listen(t)
	p := testcluster.Start(t, "echo", l.Addr().String())
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return p, c
}

func TestFreezeAndThaw(t *testing.T) {
	p, c := startChild(t)
	exchange(t, c, "before")
	for range 3 {
		testcluster.Freeze(t, p)
		send(t, c, "meanwhile")
		receivesNothing(t, c)
		require.True(t, testcluster.Alive(p.Pid()), "a frozen process is not dead")
		testcluster.Thaw(t, p)
		receive(t, c, "meanwhile")
	}
}
