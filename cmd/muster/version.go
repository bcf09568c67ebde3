package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print what this muster was built from",
		Example: "  muster version",
		Args:    operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// version returns the version from the build information.
func version() string {
	name, notes := "muster (devel)", []string{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := info.Main.Version; v != "" && v != "(devel)" {
			name = "muster " + v
		}
		notes = append(notes, revision(info)...)
	}
	return fmt.Sprintf("%s (%s)", name, strings.Join(notes, ", "))
}

func revision(info *debug.BuildInfo) (notes []string) {
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			notes = append(notes, "commit "+s.Value[:min(12, len(s.Value))])
		case s.Key == "vcs.modified" && s.Value == "true":
			notes = append(notes, "modified")
		}
	}
	return notes
}
