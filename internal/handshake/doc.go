// Package handshake makes the two ends of a connection known to each other before either does
// anything for the other. A store's server and its clients use it, and so do the ranks of a group for
// the connections between them.
//
//	peer, err := handshake.Accept(conn, &handshake.Policy{Timeout: time.Second, Credentials: known})
//	welcome, err := handshake.Open(ctx, conn, &handshake.Offer{Secret: secret, Hello: hello})
//
//	                    TLS 1.3, if the acceptor has it
//	dialer → acceptor   preface, hello: what the dialer wants, and a nonce if it has a secret
//	acceptor → dialer   OpProof: another nonce; only if the acceptor has secrets, and got a nonce
//	dialer → acceptor   OpProof: the HMAC of both nonces
//	acceptor → dialer   the reply to the hello, with an HMAC too; or a refusal
//
// Package wire has the bytes, and docs/reference/protocol.md describes them. Each file has one idea:
// who is admitted (accept.go), what a dialer offers (open.go), the proof of a secret that is never
// sent (proof.go), TLS (tls.go), refusals and which errors are worth another attempt (refusal.go),
// and the frames (frames.go).
//
// Until a peer is known, it gets MaxFrame bytes per frame and Policy.Timeout in all. What it may do
// afterwards is up to the caller.
package handshake
