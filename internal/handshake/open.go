package handshake

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// Offer is what a dialer says of itself, and asks of the acceptor.
type Offer struct {
	TLS    *tls.Config // nil: none
	Secret []byte      // nil: none; else the acceptor must prove that it knows it too
	Hello  wire.Request
}

// Welcome is an acceptor's answer to the hello.
type Welcome struct {
	Conn  net.Conn // the caller's, without a deadline; over TLS if the offer has it
	Reply wire.Reply
	In    FrameReader // with what the acceptor has sent after the reply
}

// longAgo is a deadline that ends reads and writes at once.
var longAgo = time.Unix(1, 0)

// Open makes the dialer's part of the handshake, until ctx ends. It owns conn until it returns, and
// closes it if there is an error: a *RefusalError, ErrProtocol or ErrNoAnswer, perhaps in a
// DoubtfulError, or one of the network.
func Open(ctx context.Context, conn net.Conn, o *Offer) (Welcome, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	d := dialer{Offer: o, Welcome: Welcome{Conn: conn, In: FrameReader{Inbox: transport.Inbox{First: bufferSize}, Limit: MaxFrame}}, buf: make([]byte, bufferSize)}
	err := d.startTLS()
	if err == nil {
		err = d.hello()
	}
	if !stop() {
		err = fmt.Errorf("%w: %w", ErrNoAnswer, ctx.Err())
	}
	if err != nil {
		_ = conn.Close()
		return Welcome{}, err
	}
	d.In.Compact()
	return d.Welcome, nil
}

// dialer is the state of Open.
type dialer struct {
	*Offer
	Welcome
	buf []byte
}

// startTLS makes the TLS handshake, if the offer has TLS.
func (d *dialer) startTLS() error {
	if d.TLS == nil {
		return nil
	}
	c := tlsConn{tls.Client(d.Conn, d.TLS), d.Conn}
	d.Conn = c
	err := c.handshake()
	if err == nil || IsUnreachable(err) || errors.Is(err, net.ErrClosed) { // the acceptor may be shutting down
		return err
	}
	return cmp.Or(tlsRefusal(err), error(DoubtfulError{denied(wire.ReasonUnknown, "TLS: "+err.Error())}))
}

// hello sends the hello, answers the challenge, and takes the welcome.
func (d *dialer) hello() error {
	req := d.Hello
	req.Op = wire.OpHello
	if d.Secret != nil {
		req.Token = NewNonce()
	}
	_, writeErr := d.Conn.Write(wire.AppendRequest([]byte(wire.Preface), &req))
	h, rep, err := d.readReply()
	if _, refused := errors.AsType[*RefusalError](err); writeErr != nil && err != nil && !refused {
		return writeErr
	}
	proved := d.Secret == nil
	if err == nil && h.Op == wire.OpProof && !proved {
		e, bad := newExchange(d.Conn, req.Token, rep.Value)
		if bad != nil {
			return bad
		}
		answer := wire.Request{Op: wire.OpProof, Value: e.proof(d.Secret, proofClient)}
		if _, err := d.Conn.Write(wire.AppendRequest(nil, &answer)); err != nil {
			return err
		}
		h, rep, err = d.readReply()
		proved = len(rep.Values) == 1 && e.proves(rep.Values[0], d.Secret, proofServer)
	}
	switch {
	case err != nil:
		return err
	case h.Op != wire.OpHello:
		return protocolError("unexpected reply to the hello")
	case rep.Code != wire.CodeOK:
		return &RefusalError{Code: rep.Code, Reason: wire.Reason(rep.N), Detail: rep.Detail}
	case !proved:
		return denied(wire.ReasonServerSecret, "the store did not prove that it knows the secret")
	}
	d.Reply = rep
	return nil
}

// readReply reads one frame.
func (d *dialer) readReply() (h wire.Header, rep wire.Reply, err error) {
	h, body, _, err := d.In.Read(d.Conn, d.buf)
	switch {
	case errors.Is(err, wire.ErrTooLarge), errors.Is(err, wire.ErrUnknownOp):
		head, _ := d.In.Unread()
		return h, rep, protocolError("it answered %.100q", head)
	case err != nil:
		return h, rep, cmp.Or(tlsRefusal(err), err)
	case h.Op == wire.OpGoodbye:
		return h, rep, fmt.Errorf("the store is shutting down: %w", io.EOF)
	}
	if rep.Parse(h, bytes.Clone(body)) != nil {
		return h, rep, protocolError("unexpected reply to the hello")
	}
	return h, rep, nil
}
