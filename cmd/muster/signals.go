package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/launch"
)

// notify relays sigs to c, except those that this process was started to ignore, as nohup does with
// SIGHUP: signal.Notify would enable them again.
func notify(c chan<- os.Signal, sigs ...os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// signalled is the error of a process that a signal asked to end.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return fmt.Sprintf("ended by signal %d (%v)", s.Signal, s.Signal) }

// untilSignal returns a copy of ctx that ends at SIGINT, SIGTERM or SIGHUP, with a signalled as its cause.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 1)
	notify(got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		defer signal.Stop(got)
		select {
		case sig := <-got:
			cancel(signalled{sig})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// signals passes the signals of a launcher on to its ranks. It owns a goroutine until stop.
type signals struct {
	grace    time.Duration // after a signal to end, until SIGKILL
	got      chan os.Signal
	stopped  chan struct{}
	draining chan struct{} // closed by drain
	running  sync.WaitGroup

	mu   sync.Mutex // protects the fields below
	jobs map[*launch.Job]bool
	last syscall.Signal // the signal to end; 0: none
	once bool           // draining is closed
	kill bool           // SIGKILL was sent: ranks that start later get it too
}

// catch starts to catch signals. Call it before the ranks start, so that no signal ends only the
// launcher.
func catch(grace time.Duration) *signals {
	s := &signals{grace: grace, got: make(chan os.Signal, 8), stopped: make(chan struct{}), draining: make(chan struct{}), jobs: map[*launch.Job]bool{}}
	notify(s.got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	s.running.Go(s.loop)
	return s
}

func (s *signals) stop() {
	signal.Stop(s.got)
	close(s.stopped)
	s.running.Wait()
}

// loop handles signals. After a signal to end, the ranks have the time grace to do so; a second such
// signal sends SIGKILL.
func (s *signals) loop() {
	var kill <-chan time.Time
	for {
		select {
		case <-s.stopped:
			return
		case <-kill:
			s.pass(syscall.SIGKILL)
		case got := <-s.got:
			sig, _ := got.(syscall.Signal)
			switch {
			case sig == syscall.SIGPIPE: // of this process's own output: the write has failed, and the job ends for that
			case sig == syscall.SIGUSR1 || sig == syscall.SIGUSR2:
				s.pass(sig)
			case kill != nil:
				s.pass(syscall.SIGKILL)
			default:
				s.mu.Lock()
				s.last = sig
				s.mu.Unlock()
				s.drain()
				s.pass(sig)
				kill = time.After(s.grace)
			}
		}
	}
}

func (s *signals) pass(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill = s.kill || sig == syscall.SIGKILL
	for job := range s.jobs {
		job.Signal(sig)
	}
}

// drain has this node leave its job when its ranks have ended.
func (s *signals) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.once {
		s.once = true
		close(s.draining)
	}
}

// ended returns the signal that ended this node; 0 if there was none.
func (s *signals) ended() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// blame returns the summary of a job of which a process has failed. If a signal was to end it, that is the
// reason, and what the process made of it is added if it did something else than end by it.
func (s *signals) blame(e *launch.ExitError, process string) string {
	sig := s.ended()
	if sig == 0 {
		return process
	}
	text := fmt.Sprintf("ended by signal %d (%v)", int(sig), sig)
	if e.Signal != sig {
		text += "; " + process
	}
	return text
}

// wait passes signals on to job, until it has ended, and returns its result.
func (s *signals) wait(job *launch.Job) error {
	s.mu.Lock()
	s.jobs[job] = true
	if s.last != 0 { // it came while the ranks were starting
		job.Signal(s.last)
	}
	if s.kill {
		job.Signal(syscall.SIGKILL)
	}
	s.mu.Unlock()
	err := job.Wait()
	s.mu.Lock()
	delete(s.jobs, job)
	s.mu.Unlock()
	return err
}
