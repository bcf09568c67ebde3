package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// lockKill is the time between SIGTERM and SIGKILL to a command whose lock was lost.
const lockKill = 5 * time.Second

func newLock() *cobra.Command {
	var r remote
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "lock KEY [flags] -- COMMAND [ARG…]",
		Short: "Run a command while holding a lock",
		Long: `Wait until no other "muster lock KEY" of this store holds the lock, then run COMMAND, and exit with
its code. Those that wait get the lock in the order in which they came. The variable
MUSTER_LOCK_TOKEN of COMMAND is a fencing token: a number that is higher than that of each earlier
holder, with which what the lock protects can refuse a holder that was stopped for too long. The
lock is released when COMMAND ends, and --ttl after its "muster lock" or the connection to the store
has failed; COMMAND then gets SIGTERM. With --timeout, exits with 4 if the lock is not free in time.`,
		Example: `  muster lock migrations -- ./migrate
  muster lock gpu0 --timeout 1m -- sh -c 'echo token $MUSTER_LOCK_TOKEN'`,
		Args: operands("KEY", "COMMAND", "[ARG…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ttl < minLease {
				return usagef(cmd, "--ttl %v must be at least %v", ttl, minLease)
			}
			path, err := exec.LookPath(args[1])
			if err != nil {
				return programError(args[1], err)
			}
			wait := r.timeout // is not for COMMAND
			r.timeout = 0
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				lease, err := s.Lease(ctx, ttl)
				if err != nil {
					return err
				}
				defer func() {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), boardEnd)
					defer cancel()
					_ = lease.Close(ctx)
				}()
				token, err := acquire(ctx, s, args[0], lease, wait)
				if err != nil {
					return err
				}
				c := exec.Command(path, args[2:]...)
				c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
				c.Env = append(os.Environ(), "MUSTER_LOCK_TOKEN="+strconv.FormatUint(uint64(token), 10))
				return holding(c, lease, args[0])
			})
		},
	}
	cmd.DisableFlagsInUseLine = true
	r.flags(cmd, 0)
	cmd.Flags().DurationVar(&ttl, "ttl", 10*time.Second, "time without contact to the store after which the lock is free")
	return cmd
}

// acquire waits for the lock. Each that wants it has an entry below key/, under its lease; the one with the
// lowest revision holds it, and its revision is the fencing token.
func acquire(ctx context.Context, s *store.Store, key string, lease *store.Lease, wait time.Duration) (store.Revision, error) {
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	own := fmt.Sprintf("%s/%d", key, lease.ID())
	if err := s.Set(ctx, own, fmt.Appendf(nil, "%s:%d", nodeHost(), os.Getpid()), &store.SetOptions{Lease: lease}); err != nil {
		return 0, err
	}
	for {
		var all []store.Entry
		var mine, before store.Entry
		for e, err := range s.List(ctx, key+"/") {
			if err != nil {
				return 0, err
			}
			if all = append(all, e); e.Key == own {
				mine = e
			}
		}
		if mine.Rev == 0 {
			return 0, fmt.Errorf("lock %q: the lease has ended: %w", key, lease.Err())
		}
		for _, e := range all {
			if e.Rev < mine.Rev && e.Rev > before.Rev {
				before = e
			}
		}
		if before.Rev == 0 {
			return mine.Rev, nil
		}
		for e, err := range s.Watch(ctx, before.Key, before.Rev) {
			if errors.Is(err, context.DeadlineExceeded) {
				return 0, &exit{code: exitTimeout, text: fmt.Sprintf("lock %q is held, or waited for, by %s; --timeout gives it more time", key, before.Value), err: err}
			}
			if err != nil && !errors.Is(err, store.ErrCompacted) {
				return 0, err
			}
			if err != nil || e.Key == before.Key && e.Deleted {
				break
			}
		}
	}
}

// holding runs c, passes signals on to it, and ends it if the lease ends.
func holding(c *exec.Cmd, lease *store.Lease, key string) error {
	got := make(chan os.Signal, 8)
	notify(got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(got)
	if err := c.Start(); err != nil {
		return programError(c.Path, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	lost := lease.Done()
	var kill <-chan time.Time
	for {
		select {
		case sig := <-got:
			if sig == syscall.SIGTERM { // a terminal sends the others to the command itself
				_ = c.Process.Signal(sig)
			}
		case <-lost:
			lost, kill = nil, time.After(lockKill)
			_ = c.Process.Signal(syscall.SIGTERM)
		case <-kill:
			_ = c.Process.Kill()
		case err := <-ended:
			switch e, ok := errors.AsType[*exec.ExitError](err); {
			case lost == nil:
				return &exit{code: exitFailed, text: fmt.Sprintf("lock %q was lost, and the command was ended: %v", key, lease.Err()), err: lease.Err()}
			case !ok:
				return err
			default:
				code := e.ExitCode()
				if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
					code = 128 + int(ws.Signal())
				}
				return &exit{code: code, err: err}
			}
		}
	}
}
