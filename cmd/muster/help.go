package main

import (
	"fmt"
	"slices"

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
