package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/doctor"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
	"github.com/spf13/cobra"
)

// doctoring holds the options of doctor.
type doctoring struct {
	doctor.Doctor
	remote remote // its timeout is that of the whole command
	asJSON bool
}

func newDoctor() *cobra.Command {
	o := &doctoring{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this environment for a job, and say what to do",
		Long: `Check this environment for a job: addresses, ports, certificates, and a directory.
Each finding is ok, a warning, or a problem, with what to do about it.

With --store or MUSTER_STORE it checks that store as a client: whether it grants access with this
secret and certificate, until when its certificate is valid, and, if it is replicated, which process
leads and which are standbys.

Started as the ranks of a job, by muster run, torchrun, mpirun or srun, all ranks check each other
too: whether each can connect to every other and in which direction not, and how far their clocks
are apart. Rank 0 prints the findings of all ranks.

Exits with 1 if there is a problem. No check takes longer than --timeout.`,
		Example: `  muster doctor
  muster doctor --port 29500 --port 10.0.0.5:7070 --dir /shared/job
  muster doctor --store muster://10.0.0.5:7070 --tls-ca ca.pem --secret-file secret
  muster run -n 4 -- muster doctor
  srun -N 8 -n 32 muster doctor --dir /shared/job --timeout 2m
  muster doctor --json | jq -r '.findings[] | select(.level == "problem") | .text'`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.remote.flags(cmd, 30*time.Second)
	f := cmd.Flags()
	f.StringArrayVar(&o.Ports, "port", nil, "port `number` that must be free here, or host:port that must be reachable; may be repeated")
	f.StringVar(&o.Dir, "dir", "", "`directory` that the ranks share")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON object, for programs")
	return cmd
}

func (o *doctoring) check(cmd *cobra.Command) error {
	switch {
	case o.remote.timeout < time.Second:
		return usagef(cmd, "--timeout %v: it takes a second at least", o.remote.timeout)
	case o.Dir == "" && cmd.Flags().Changed("dir"):
		return usagef(cmd, "--dir is empty: is the variable that it is of not set?")
	}
	for _, p := range o.Ports {
		port := p
		if _, err := strconv.Atoi(p); err != nil {
			if _, port, err = net.SplitHostPort(p); err != nil {
				return usagef(cmd, "--port %s is neither a number nor host:port", p)
			}
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || port != strconv.Itoa(n) {
			return usagef(cmd, "--port %s: a port is 1 to 65535", p)
		}
	}
	return nil
}

// findStore sets the URL of the store to check: that of --store or MUSTER_STORE, or none.
func (o *doctoring) findStore(cmd *cobra.Command) error {
	if o.remote.url == "" && os.Getenv("MUSTER_STORE") == "" {
		return nil
	}
	fromFlag := o.remote.url != ""
	if err := o.remote.check(cmd); err != nil && fromFlag {
		return err
	}
	o.Store = o.remote.target() // a wrong URL in the environment is a finding
	return nil
}

func (o *doctoring) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	if err := o.findStore(cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.remote.timeout)
	defer cancel()
	o.Version, o.System, o.AnswerTimeout = version(), doctor.Here(), min(3*time.Second, o.remote.timeout/6)
	o.System.Open, o.Advice = schemes().Open, func(why wire.Reason) string { return access(o.Store, why) }
	o.System.FromEnv = func() (pgroup.Config, error) {
		c, err := pgroup.FromEnv()
		if !strings.HasPrefix(c.Address, "muster://") { // otherwise Config has the TLS that is examined
			byURL(&c)
		}
		return c, err
	}
	out := cmd.OutOrStdout()
	problems, err := o.Run(ctx, func(r *doctor.Report) error {
		if o.asJSON {
			return printJSON(out, r)
		}
		return printFindings(out, inkOf(out), r)
	})
	if err == nil && problems > 0 {
		return &exit{code: exitFailed} // the report says everything
	}
	return err
}

// printFindings prints the report of doctor for people.
func printFindings(w io.Writer, k ink, r *doctor.Report) error {
	out := bufio.NewWriter(w)
	p := &report{out, k}
	for _, f := range r.Findings {
		mark := map[doctor.Level]func(string) string{doctor.OK: k.green, doctor.Warning: k.yellow, doctor.Problem: k.red}[f.Level]
		who := ""
		if n := len(f.Ranks); n > 0 && n < r.Ranks { // not all of them
			who = status.RankList(slices.Compact(f.Ranks)) + ": "
		}
		p.line("%s  %-11s  %s%s", mark(fmt.Sprintf("%-7s", f.Level)), f.Check, who, f.Text)
		if f.Do != "" {
			p.line("                      %s", k.dim("→ "+f.Do))
		}
	}
	switch warnings := count(int64(r.Warnings), "warning"); {
	case r.Problems > 0:
		p.line("\n%s", k.red(count(int64(r.Problems), "problem")+", "+warnings))
	case r.Warnings > 0:
		p.line("\n%s", k.yellow("no problem, "+warnings))
	default:
		p.line("\n%s", k.green("all is well"))
	}
	return out.Flush()
}
