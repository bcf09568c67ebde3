package main

import (
	"embed"
	"strings"

	"github.com/spf13/cobra"
)

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
