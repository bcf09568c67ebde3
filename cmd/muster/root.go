package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	groupStart = "start"
	groupJobs  = "jobs"
	groupStore = "store"
	groupFiles = "files"
	groupOther = "other"
)

// execute runs one command line, and returns the exit code of the process.
func execute(args []string) int {
	root := newRoot()
	root.SetArgs(shieldNumbers(root, args))
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	line, code := explain(err)
	if line != "" {
		fmt.Fprintln(os.Stderr, inkOf(os.Stderr).red("muster:"), line)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "Process groups: start them, host their store, inspect it",
		Long: `muster runs process groups: it starts ranks, hosts their store, and shows what they wait for.

See it work:     muster demo
Start a group:   muster run -n 4 -- ./train
See what hangs:  muster who
Host a store:    muster serve --listen 127.0.0.1:7070
Look into it:    muster keys --store muster://127.0.0.1:7070
Look at a model: muster tensors model.safetensors`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: groupStart, Title: "Processes:"},
		&cobra.Group{ID: groupJobs, Title: "Running jobs (of this host, or of --store or MUSTER_STORE):"},
		&cobra.Group{ID: groupStore, Title: "A running store (--store or MUSTER_STORE):"},
		&cobra.Group{ID: groupFiles, Title: "Files:"},
		&cobra.Group{ID: groupOther, Title: "Other:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupStart, newDemo(), newRun(), newServe(), newRelay(), newBench(), newDoctor())
	add(groupJobs, newPs(), newWho(), newPage(), newStop())
	add(groupStore, newSet(), newGet(), newWait(), newAdd(), newDelete(), newPush(), newPop(), newLock(), newKeys(), newWatch(), newPing(), newBackup())
	add(groupFiles, newTensors(), newGather(), newTrace(), newRestore(), newCerts())
	add(groupOther, newVersion())
	root.AddCommand(newTopic("exit-codes", "Exit codes"), newTopic("environment", "The variables that muster reads and sets"), newGuard(), newDemoRank(), newBenchRank(), newMan())
	root.SetHelpCommand(newHelp(root))
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	addCompletion(root)
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	return root
}

// flagError describes an unknown flag or an invalid value of a flag.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && strings.HasPrefix(unknown.GetSpecifiedName(), "nproc") {
		return usagef(cmd, "there is no flag --%s: -n is the number of ranks on this node", unknown.GetSpecifiedName())
	}
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usagef(cmd, "%v", err)
	}
	f := bad.GetFlag()
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	want := ": " + bad.Unwrap().Error()
	switch f.Value.Type() {
	case "int", "int64":
		want = " is not a whole number"
		if f.Shorthand == "n" && bad.GetValue() == "p" {
			want += ": -np is mpirun's, here it is -n"
		}
	case "uint64":
		want = " is not a whole number from 0"
	case "intSlice":
		want = " is not a list of whole numbers, such as 2,4,8"
	case "bool":
		want = " is neither true nor false"
	case "duration":
		want = " is not a duration, such as 30s or 5m"
	}
	return usagef(cmd, "%s %q%s", name, bad.GetValue(), want)
}

// knownCommand returns an error if the first argument is not a command.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := root.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(", did you mean %s?", strings.Join(near, " or "))
	}
	return usagef(root, "there is no command %q%s", args[0], hint)
}

// operands checks the number of arguments of a command, and that no number among its flags is negative.
// Each name is one argument; "[NAME]" is optional, and "NAME…" is one or more.
func operands(names ...string) cobra.PositionalArgs {
	least, most := 0, len(names)
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
		if strings.Contains(n, "…") {
			most = 1 << 20
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef(cmd, "%s is missing", names[len(args)])
		case len(args) > most:
			return usagef(cmd, "unexpected argument %q", args[most])
		}
		return checkNotNegative(cmd)
	}
}

func checkNotNegative(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if kind := f.Value.Type(); (kind == "int" || kind == "duration") && strings.HasPrefix(f.Value.String(), "-") {
			err = usagef(cmd, "--%s must not be negative", f.Name)
		}
	})
	return err
}

// checkPositive checks flags that are numbers, durations or sizes.
func checkPositive(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if v := cmd.Flags().Lookup(name).Value.String(); v == "0" || v == "0s" {
			return usagef(cmd, "--%s must be positive", name)
		}
	}
	return nil
}

var negative = regexp.MustCompile(`^-[0-9]+$`)

// shieldNumbers moves the negative numbers of add behind "--", so that they are not parsed as
// flags.
func shieldNumbers(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Name() != "add" || slices.Contains(args, "--") {
		return args
	}
	var numbers, rest []string
	for _, a := range args {
		if negative.MatchString(a) {
			numbers = append(numbers, a)
		} else {
			rest = append(rest, a)
		}
	}
	if numbers == nil {
		return args
	}
	return append(append(rest, "--"), numbers...)
}
