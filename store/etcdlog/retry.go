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

// attempt is for how long one member of etcd has to answer before another one is asked.
const attempt = time.Second

// reading is for how long etcd has to answer with a page of a log, or a part of a checkpoint, in the end.
const reading = 10 * attempt

// insist calls f, which may be called again, until it has an answer, an error that no repetition mends, o.Outage has passed, or ctx ends. The
// first attempts are short, and the next ones ask other members: one that is silent is not to take the time after which a leader has failed.
func insist(ctx context.Context, o *Options, f func(ctx context.Context) error) error {
	began := time.Now()
	limit := min(attempt, o.FailureTimeout/4)
	for pause := 5 * time.Millisecond; ; pause, limit = min(2*pause, 200*time.Millisecond), min(2*limit, attempt) {
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
		case time.Since(began) > o.Outage:
			return fmt.Errorf("no answer from etcd for %v: %w", o.Outage, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// transient reports whether another attempt may get an answer.
func transient(err error) bool {
	if errors.Is(err, ErrReplaced) {
		return false
	}
	late := text(err) == context.DeadlineExceeded.Error() // at the server, whose clock may be a little earlier, and which has no code for it
	if late || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, clientv3.ErrNoAvailableEndpoints) || is(err, rpctypes.ErrGRPCRequestTooManyRequests) ||
		is(err, rpctypes.ErrGRPCInvalidAuthToken) || is(err, rpctypes.ErrGRPCAuthOldRevision) || is(err, rpctypes.ErrGRPCNotLeader) || is(err, rpctypes.ErrGRPCNoSpace) ||
		is(err, rpctypes.ErrGRPCCompacted) { // of a standby that reads a checkpoint, slowly
		return true
	}
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Aborted
}

// denied reports whether etcd refuses this user.
func denied(err error) bool {
	return is(err, rpctypes.ErrGRPCPermissionDenied) || is(err, rpctypes.ErrGRPCAuthFailed) || is(err, rpctypes.ErrGRPCUserEmpty) || is(err, rpctypes.ErrGRPCAuthNotEnabled)
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
