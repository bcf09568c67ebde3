package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan returns the hidden command with which packages make their manual pages.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Hidden: true, Short: "Write the manual pages into a directory", Args: operands("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			// The date is that of the Unix epoch, so that equal sources make equal pages.
			epoch := time.Unix(0, 0).UTC()
			return doc.GenManTree(root, &doc.GenManHeader{Title: "MUSTER", Section: "1", Source: "muster", Manual: "muster", Date: &epoch}, args[0])
		},
	}
}
