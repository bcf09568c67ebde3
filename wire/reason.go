package wire

// Reason is why a store could not be used: for programs that say which setting to change. It is N of
// a reply that refuses OpHello, and of OpGoodbye from a server; a client adds what it detects itself.
type Reason int64

// The reasons. Numbers are only ever added.
const (
	ReasonUnknown           Reason = iota // the text of the error has more
	ReasonNoTLS                           // the server requires TLS
	ReasonTLS                             // the server does not use TLS
	ReasonNoCertificate                   // the server requires a client certificate
	ReasonCertificate                     // the server does not accept the client's certificate, or it has no rights
	ReasonNoSecret                        // the server requires a secret
	ReasonSecret                          // the secret is wrong
	ReasonRelay                           // a relay answers, and cannot reach the store
	ReasonServerCertificate               // the client does not trust the server's certificate
	ReasonServerName                      // the server's certificate is for other names
	ReasonServerSecret                    // the server did not prove that it knows the secret
	ReasonNoAnswer                        // the address accepts connections, and nothing answers
	ReasonDisconnected                    // the client had no connection when the call ended
	ReasonDisk                            // the store cannot write to its disk, and has ended
)
