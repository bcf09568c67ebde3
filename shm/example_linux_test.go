package shm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/muster-pg/muster/shm"
)

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// connect returns two Conns connected to each other, as two processes would have over a socket.
func connect() (*shm.Conn, *shm.Conn) {
	dir := must(os.MkdirTemp("", "shm"))
	defer os.RemoveAll(dir)
	addr := &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unix"}
	l := must(net.ListenUnix("unix", addr))
	defer l.Close()
	near := must(net.DialUnix("unix", nil, addr))
	far := must(l.AcceptUnix())
	return shm.NewConn(near), shm.NewConn(far)
}

func Example() {
	ctx := context.Background()
	owner, reader := connect() // these are in two processes
	defer owner.Close()
	defer reader.Close()

	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(5))
	copy(b, "hello")
	ref, _ := arena.Find(b)
	check(owner.Share(ctx, arena, ref)) // then send ref to the peer

	blocks := must(reader.Map(ctx, ref))
	fmt.Printf("%s\n", blocks[0].Data)
	blocks[0].Release()

	check(owner.WaitReleased(ctx, ref))
	arena.Free(b)
	// Output: hello
}

func ExampleNewArena() {
	arena := must(shm.NewArena(&shm.Options{Segment: 1 << 20, Limit: 8 << 20}))
	defer arena.Close()
	_, err := arena.Alloc(10 << 20)
	fmt.Println(errors.Is(err, shm.ErrFull))
	fmt.Println(err)
	// Output:
	// true
	// shm: not enough memory: 10.0 MiB wanted, 8.0 MiB left: Options.Limit of 8.0 MiB
}
