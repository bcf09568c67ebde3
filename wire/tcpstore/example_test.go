package tcpstore_test

import (
	"fmt"

	"github.com/muster-pg/muster/wire/tcpstore"
)

// A server's side of one call.
func Example() {
	request, _ := tcpstore.AppendRequest(nil, &tcpstore.Request{Op: tcpstore.OpAdd, Key: "/count", N: 5})

	var (
		c   tcpstore.Cursor
		req tcpstore.Request
	)
	n, whole, err := tcpstore.NextRequest(request[:4], &c, tcpstore.Limits{})
	fmt.Println(n, whole, err) // more bytes are needed
	n, whole, err = tcpstore.NextRequest(request, &c, tcpstore.Limits{})
	fmt.Println(n, whole, err)

	err = req.Parse(request[:n])
	fmt.Println(req.Op, req.Key, req.N, err)
	fmt.Printf("%x\n", tcpstore.AppendReply(nil, req.Op, &tcpstore.Reply{N: 5}))
	// Output:
	// 9 false <nil>
	// 23 true <nil>
	// ADD /count 5 <nil>
	// 0500000000000000
}
