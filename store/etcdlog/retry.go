package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// attemptTimeout is how long one member of etcd has to answer before another member is tried.
const attemptTimeout = time.Second

// readTimeout is the longest time for one page of a log, or one part of a checkpoint.
const readTimeout = 10 * attemptTimeout

// retry calls f, which must be idempotent, until it has an answer, an error that a retry cannot
// resolve, o.OutageTimeout has passed, or ctx ends. The first attempts are short, and later ones
// ask other members: a member that does not answer must not take the whole failure timeout.
func retry(ctx context.Context, o *Options, f func(ctx context.Context) error) error {
	began := time.Now()
	limit := min(attemptTimeout, o.FailureTimeout/4)
	for pause := 5 * time.Millisecond; ; pause, limit = min(2*pause, 200*time.Millisecond), min(2*limit, attemptTimeout) {
		one, cancel := context.WithTimeout(ctx, limit)
		err := f(one)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !transient(err):
			return err
		case time.Since(began) > o.OutageTimeout:
			return fmt.Errorf("no answer from etcd for %v: %w", o.OutageTimeout, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// transient reports whether another attempt may succeed.
func transient(err error) bool {
	if errors.Is(err, ErrReplaced) {
		return false
	}
	// The server's clock may be ahead. etcd has no code for that.
	late := text(err) == context.DeadlineExceeded.Error()
	if late || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, clientv3.ErrNoAvailableEndpoints) || is(err, rpctypes.ErrGRPCRequestTooManyRequests) ||
		is(err, rpctypes.ErrGRPCInvalidAuthToken) || is(err, rpctypes.ErrGRPCAuthOldRevision) || is(err, rpctypes.ErrGRPCNotLeader) || is(err, rpctypes.ErrGRPCNoSpace) ||
		is(err, rpctypes.ErrGRPCCompacted) { // a standby that reads a checkpoint too slowly
		return true
	}
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Aborted
}

// denied reports whether etcd denied access to the user.
func denied(err error) bool {
	return is(err, rpctypes.ErrGRPCPermissionDenied) || is(err, rpctypes.ErrGRPCAuthFailed) || is(err, rpctypes.ErrGRPCUserEmpty) || is(err, rpctypes.ErrGRPCAuthNotEnabled)
}

// is reports whether err is target, one of etcd's errors. The client returns them in two forms.
func is(err, target error) bool {
	return errors.Is(err, target) || errors.Is(err, rpctypes.Error(target)) || text(err) == text(target)
}

// text returns etcd's message in err.
func text(err error) string {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Error()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
