package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// refuse is the answer to what cannot be.
func refuse(rep *wire.Reply, code wire.Code, format string, args ...any) error {
	*rep = wire.Reply{Code: code, Detail: fmt.Sprintf(format, args...)}
	return nil
}

// failed is the answer that a verdict makes.
func failed(v *wire.Verdict) wire.Reply { return wire.Reply{Code: v.Code, Verdict: v} }

// answered puts what etcd refused into rep, by name. Any other error is that of a call which has no answer.
func answered(err error, rep *wire.Reply) error {
	switch {
	case err == nil:
		return nil
	case is(err, rpctypes.ErrGRPCNoSpace):
		return refuse(rep, wire.CodeFull, "%s: raise etcd's quota, or compact, defragment and disarm its alarm", text(err))
	case is(err, rpctypes.ErrGRPCRequestTooLarge), is(err, rpctypes.ErrGRPCTooManyOps), status.Code(err) == codes.ResourceExhausted && !is(err, rpctypes.ErrGRPCRequestTooManyRequests):
		return refuse(rep, wire.CodeTooLarge, "%s: etcd's limit is --max-request-bytes", text(err))
	case is(err, rpctypes.ErrGRPCLeaseTTLTooLarge):
		return refuse(rep, wire.CodeTooLarge, "%s", text(err))
	case is(err, rpctypes.ErrGRPCPermissionDenied), is(err, rpctypes.ErrGRPCAuthFailed), is(err, rpctypes.ErrGRPCUserEmpty),
		is(err, rpctypes.ErrGRPCInvalidAuthToken), is(err, rpctypes.ErrGRPCAuthNotEnabled):
		return refuse(rep, wire.CodeDenied, "%s", text(err))
	case is(err, rpctypes.ErrGRPCCompacted), is(err, rpctypes.ErrGRPCFutureRev):
		return refuse(rep, wire.CodeCompacted, "list again, and watch from the revision of what was listed")
	}
	return err
}

// is reports whether err is one of etcd's, which the client gives in two forms.
func is(err, target error) bool {
	return errors.Is(err, target) || errors.Is(err, rpctypes.Error(target)) || text(err) == text(target)
}

// text is what etcd says of itself.
func text(err error) string {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Error()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// transient reports whether another attempt may get an answer.
func transient(err error) bool {
	late := text(err) == context.DeadlineExceeded.Error() // at the server, whose clock may be a little earlier, and which has no code for it
	if late || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, clientv3.ErrNoAvailableEndpoints) || is(err, rpctypes.ErrGRPCRequestTooManyRequests) ||
		is(err, rpctypes.ErrGRPCInvalidAuthToken) || is(err, rpctypes.ErrGRPCAuthOldRevision) || is(err, rpctypes.ErrGRPCNotLeader) {
		return true
	}
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Aborted
}

// errSession is why calls end whose session is lost.
var errSession = &store.Error{
	Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrSession), Detail: "its lease has ended at etcd",
}

// unavailable is the error of a call that etcd has not answered for too long.
func unavailable(err error) error {
	return &store.Error{Code: wire.CodeUnavailable, Err: store.ErrUnavailable, Detail: "etcd: " + dialed(err)}
}

// unknown says that a change may have been made, or may yet be.
func unknown(err error) error {
	if e, ok := errors.AsType[*store.Error](err); ok {
		own := *e
		own.Err = fmt.Errorf("%w: %w", store.ErrUnknown, e.Err)
		return &own
	}
	return fmt.Errorf("%w: %w", store.ErrUnknown, err)
}
