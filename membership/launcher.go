package membership

import (
	"context"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
)

// lostTTL is how long the store keeps the note that a removed worker has failed. A worker that reads the
// removal later than that sees it as leaving.
const lostTTL = time.Minute

// Remove ends the registration of a worker whose process has ended. It is for the launcher of the worker: the
// others see at once that the worker has failed, and not when the reconnect timeout of the server has passed.
// If the worker is not registered, because it has left, Remove does nothing. If it lives, its Next returns
// ErrEvicted.
func Remove(ctx context.Context, s *store.Store, job, id string) error {
	k := keysOf(job)
	r, err := readRoster(ctx, s, &k)
	if err == nil {
		for key, g := range r.workers {
			if g.ID == id && err == nil {
				err = remove(ctx, s, &k, key)
			}
		}
	}
	if err != nil {
		return &Error{Op: "remove", Job: job, ID: id, Rank: -1, Err: err}
	}
	return nil
}

// remove deletes a registration. The note comes first: the others read the changes in this order, so they
// know that the worker has not left by itself.
func remove(ctx context.Context, s *store.Store, k *keys, registration string) error {
	err := s.Set(ctx, k.lost+strings.TrimPrefix(registration, k.workers), nil, &store.SetOptions{TTL: lostTTL})
	if err == nil {
		_, err = s.Delete(ctx, registration)
	}
	return err
}

// Finished reports whether workers of a launch of the job (Config.Launch) have done its work (View.Finish)
// within the last hour. Then the launcher need not start a worker again that fails.
func Finished(ctx context.Context, s *store.Store, job, launch string) (bool, error) {
	k := keysOf(job)
	done, err := finished(ctx, s, &k, launch)
	if err != nil {
		return false, &Error{Op: "finished", Job: job, Rank: -1, Err: err}
	}
	return done, nil
}

func finished(ctx context.Context, s *store.Store, k *keys, launch string) (bool, error) {
	for e, err := range s.List(ctx, k.finished("")) {
		if err != nil || string(e.Value) == launch {
			return err == nil, err
		}
	}
	return false, nil
}
