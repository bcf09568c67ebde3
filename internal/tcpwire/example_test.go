package tcpwire_test

import (
	"fmt"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// A server's side of one call.
func Example() {
	request, _ := tcpwire.AppendRequest(nil, &tcpwire.Request{Op: tcpwire.OpAdd, Key: "/count", N: 5})

	var (
		c   tcpwire.Cursor
		req tcpwire.Request
	)
	n, whole, err := tcpwire.NextRequest(request[:4], &c, tcpwire.Limits{})
	fmt.Println(n, whole, err) // more bytes are needed
	n, whole, err = tcpwire.NextRequest(request, &c, tcpwire.Limits{})
	fmt.Println(n, whole, err)

	err = req.Parse(request[:n])
	fmt.Println(req.Op, req.Key, req.N, err)
	fmt.Printf("%x\n", tcpwire.AppendReply(nil, req.Op, &tcpwire.Reply{N: 5}))
	// Output:
	// 9 false <nil>
	// 23 true <nil>
	// ADD /count 5 <nil>
	// 0500000000000000
}
