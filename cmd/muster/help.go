package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpAll is the flag of the commands in common that prints the help on all their flags.
const helpAll = "help-all"

// common has the flags that most people use, of commands with many: their help shows these alone.
var common = map[string][]string{
	"run": {
		"ranks", "env", "store", "timeout", "grace", "keep-going", "max-restarts", "log-dir", "elastic", "nnodes", "node-rank", "job",
	},
	"serve": {
		"listen", "data", "etcd", "secret-file", "access", "tls-cert", "tls-key", "tls-ca", "require-client-cert", "http", "health", "max-bytes",
	},
	"relay": {
		"listen", "store", "timeout", "secret-file", "access", "tls-cert", "tls-key", "tls-ca", "require-client-cert", "log-level",
	},
}

// shortenHelp has the help of some commands show their common flags.
func shortenHelp(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		shown := common[cmd.Name()]
		if shown == nil {
			continue
		}
		cmd.Flags().Bool(helpAll, false, "print the help on all flags")
		help := cmd.HelpFunc()
		cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
			rare := 0
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if !cmd.Flags().Changed(helpAll) && f.Name != "help" && f.Name != helpAll && !slices.Contains(shown, f.Name) {
					f.Hidden = true
					rare++
				}
			})
			help(cmd, args)
			if rare > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "\nThere are %d more flags: muster %s --%s\n", rare, cmd.Name(), helpAll)
			}
		})
	}
}

// topics has the text of each topic of help that is not a command.
//
//go:embed help
var topics embed.FS

func newTopic(name, short string) *cobra.Command {
	text, _ := topics.ReadFile("help/" + name + ".txt")
	return &cobra.Command{Use: name, Short: short, Long: strings.TrimSuffix(string(text), "\n")}
}

func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about a command, exit-codes or environment",
		Example: "  muster help run\n  muster help exit-codes",
		ValidArgsFunction: func(_ *cobra.Command, _ []string, prefix string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range root.Commands() {
				if !c.Hidden && strings.HasPrefix(c.Name(), prefix) {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return usagef(root, "%v", err)
			}
			if len(rest) > 0 {
				return usagef(root, "there is no help on %q", rest[0])
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}

// addCompletion adds the completion command of cobra, but rejects an unknown shell.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	cmd.Short = "Print a completion script for bash, zsh, fish or powershell"
	cmd.Example = "  source <(muster completion bash)\n  muster completion zsh > \"${fpath[1]}/_muster\""
	cmd.Args = operands("[SHELL]")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return usagef(cmd, "there is no completion for %q, but for bash, zsh, fish and powershell", args[0])
	}
}
