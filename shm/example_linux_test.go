package shm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
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

func ExampleArena_Alloc() {
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	// a tensor that is allocated here need not be copied
	w := must(tensor.NewIn(arena, tensor.F32, 2, 3))
	_, here := arena.Find(w.Data)
	fmt.Println(w, here)
	arena.Free(w.Data)
	// Output: F32[2,3] true
}

func ExampleArena_Free() {
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	for range 3 { // allocates memory once
		b := must(arena.Alloc(3 << 20))
		fmt.Println(arena.Stats().Taken >> 20)
		arena.Free(b)
	}
	// Output:
	// 3
	// 3
	// 3
}

func ExampleArena_Find() {
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(100))
	ref, ok := arena.Find(b[10:30])
	fmt.Println(ref.Offset, ref.Len, ok)
	_, ok = arena.Find(make([]byte, 30))
	fmt.Println(ok)
	// Output:
	// 10 20 true
	// false
}

func ExampleArena_Trim() {
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(100))
	arena.Free(b)
	fmt.Println(arena.Stats().Segments)
	arena.Trim()
	fmt.Println(arena.Stats().Segments)
	// Output:
	// 1
	// 0
}

func ExampleArena_Stats() {
	ctx := context.Background()
	owner, reader := connect()
	defer owner.Close()
	defer reader.Close()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(1000))
	ref, _ := arena.Find(b[:100])
	check(owner.Share(ctx, arena, ref))
	fmt.Printf("%+v\n", arena.Stats())
	// Output: {Segments:1 Retired:0 Mapped:67108864 Taken:1048576 InUse:1024 Shared:1024}
}

func ExampleArena_Close() {
	arena := must(shm.NewArena(nil))
	b := must(arena.Alloc(5))
	arena.Close()
	copy(b, "still") // until it is freed
	fmt.Printf("%s %d\n", b, arena.Stats().Segments)
	arena.Free(b)
	fmt.Println(arena.Stats().Segments)
	_, err := arena.Alloc(5)
	fmt.Println(err)
	// Output:
	// still 1
	// 0
	// shm: closed
}

func ExampleNewConn() {
	near, far := connect() // calls NewConn for both ends of a socket
	near.Close()
	<-far.Done()
	fmt.Println(far.Err())
	far.Close()
	// Output: shm: the peer has ended the connection: EOF
}

func ExampleConn_Share() {
	ctx := context.Background()
	owner, reader := connect()
	defer owner.Close()
	defer reader.Close()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(100))
	ref, _ := arena.Find(b)
	fmt.Println(owner.Share(ctx, arena, ref))
	arena.Free(b) // these bytes are not reused before the peer has released them
	fmt.Println(arena.Stats().InUse)
	// Output:
	// <nil>
	// 128
}

func ExampleConn_Unshare() {
	ctx := context.Background()
	owner, reader := connect()
	defer owner.Close()
	defer reader.Close()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(100))
	ref, _ := arena.Find(b)
	fmt.Println(owner.Share(ctx, arena, ref))
	fmt.Println(owner.Unshare(ref)) // the peer was not notified of it
	fmt.Println(owner.WaitReleased(ctx, ref))
	// Output:
	// <nil>
	// <nil>
	// <nil>
}

func ExampleCheckMemory() {
	if err := shm.CheckMemory(1 << 60); errors.Is(err, shm.ErrFull) {
		fmt.Println("this host has not that much")
	}
	// Output: this host has not that much
}

func ExampleConn_Map() {
	ctx := context.Background()
	owner, reader := connect()
	defer owner.Close()
	defer reader.Close()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(10))
	copy(b, "0123456789")
	first, _ := arena.Find(b[:4])
	rest, _ := arena.Find(b[4:])
	check(owner.Share(ctx, arena, first, rest))
	blocks := must(reader.Map(ctx, rest, first))
	for _, block := range blocks {
		fmt.Printf("%s\n", block.Data)
		block.Release()
	}
	// Output:
	// 456789
	// 0123
}

// Memory that a peer has shared can be mapped after its end.
func ExampleConn_Map_afterTheEnd() {
	ctx := context.Background()
	owner, reader := connect()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(9))
	copy(b, "testament")
	ref, _ := arena.Find(b)
	check(owner.Share(ctx, arena, ref)) // then send ref to the peer
	owner.Close()                       // or kill -9
	<-reader.Done()
	blocks := must(reader.Map(ctx, ref))
	fmt.Printf("%s\n", blocks[0].Data)
	blocks[0].Release()
	reader.Close() // the memory of the peer is freed with it
	_, err := reader.Map(ctx, ref)
	fmt.Println(err)
	// Output:
	// testament
	// shm: map 1 refs: shm: closed
}

func ExampleConn_WaitReleased() {
	ctx := context.Background()
	owner, reader := connect()
	defer owner.Close()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(10))
	ref, _ := arena.Find(b)
	check(owner.Share(ctx, arena, ref))
	reader.Close() // without having released it
	err := owner.WaitReleased(ctx, ref)
	fmt.Println(errors.Is(err, io.EOF))
	<-owner.Done()
	fmt.Println(arena.Stats().Retired) // the bytes may still be read
	// Output:
	// true
	// 1
}

func ExampleConn_Close() {
	near, far := connect()
	near.Close()
	fmt.Println(near.Err())
	far.Close()
	// Output: shm: closed
}

func ExampleBlock_Release() {
	ctx := context.Background()
	owner, reader := connect()
	defer owner.Close()
	arena := must(shm.NewArena(nil))
	defer arena.Close()
	b := must(arena.Alloc(5))
	copy(b, "hello")
	ref, _ := arena.Find(b)
	check(owner.Share(ctx, arena, ref))
	blocks := must(reader.Map(ctx, ref))
	reader.Close()
	fmt.Printf("%s\n", blocks[0].Data) // until it is released
	blocks[0].Release()
	fmt.Println(blocks[0].Data == nil)
	// Output:
	// hello
	// true
}
