package main

import (
	"cmp"
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

// release is the version of a binary that is built from a checkout, as that of the Python wheels is:
// -ldflags "-X main.release=v0.1.0". It is empty for "go install MODULE@VERSION".
var release string

// version returns the version of the release, or the one from the build information.
func version() string {
	name, notes := "muster (devel)", []string{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := cmp.Or(release, info.Main.Version); v != "" && v != "(devel)" {
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
