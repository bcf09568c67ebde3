package main

import (
	"os"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// envLiveness is the variable with the liveness timeout of hosted stores and of the ranks.
const envLiveness = "MUSTER_LIVENESS_TIMEOUT"

// livenessFlag is the flag for the liveness timeout; 0 means that it is not set.
type livenessFlag struct {
	timeout time.Duration
}

func (l *livenessFlag) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&l.timeout, "liveness-timeout", store.DefaultLivenessTimeout,
		"liveness timeout: a peer that sends nothing for so long, and answers no probe, has failed; from 600ms to 1h; or set "+envLiveness)
}

// check validates the flag, or the variable if the flag is not given.
func (l *livenessFlag) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("liveness-timeout") {
		return checkPositive(cmd, "liveness-timeout")
	}
	return l.fromEnviron()
}

func (l *livenessFlag) fromEnviron() (err error) {
	l.timeout = 0
	v := os.Getenv(envLiveness)
	if v == "" {
		return nil
	}
	if l.timeout, err = time.ParseDuration(v); err != nil || l.timeout < 0 {
		return &exit{code: exitUsage, text: envLiveness + " is " + v + ", which is not a duration, such as 30s", err: err}
	}
	return nil
}
