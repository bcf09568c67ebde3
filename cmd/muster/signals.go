package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/launch"
)

// signals are the signals that a launcher passes on to its ranks.
type signals struct{ got chan os.Signal }

// catch starts to catch them. Call it before the ranks start, so that no signal ends only the
// launcher.
func catch() signals {
	s := signals{make(chan os.Signal, 8)}
	signal.Notify(s.got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	return s
}

func (s signals) stop() { signal.Stop(s.got) }

// passOn passes signals on until the job has ended, and returns its result. After a signal to end,
// the ranks have the duration grace to do so; a second such signal sends SIGKILL.
func (s signals) passOn(job *launch.Job, grace time.Duration) error {
	var kill <-chan time.Time
	for {
		select {
		case <-job.Done():
			return job.Wait()
		case <-kill:
			job.Signal(syscall.SIGKILL)
		case sig := <-s.got:
			switch {
			case sig == syscall.SIGPIPE: // of this process's own output: the write has failed, and the job ends for that
			case sig == syscall.SIGUSR1 || sig == syscall.SIGUSR2:
				job.Signal(sig)
			case kill != nil:
				job.Signal(syscall.SIGKILL)
			default:
				job.Signal(sig)
				kill = time.After(grace)
			}
		}
	}
}
