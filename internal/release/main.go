// Command release prepares a release: make release VERSION=v0.1.0. It sets the version in all
// files that name it, dates the section of CHANGELOG.md, and prints the git commands that commit,
// tag and push. It pushes nothing itself.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const usage = `usage: release VERSION          set VERSION, as v0.1.0 or v0.2.0-rc.1, in all files
       release notes VERSION    print the section of VERSION in CHANGELOG.md`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] != "notes":
		tags, err := Prepare(".", args[0], time.Now())
		if err != nil {
			return err
		}
		fmt.Print(Instructions(args[0], tags))
		return nil
	case len(args) == 2 && args[0] == "notes":
		text, err := os.ReadFile(filepath.FromSlash(changelog))
		if err != nil {
			return err
		}
		notes, err := Notes(string(text), args[1])
		fmt.Print(notes)
		return err
	}
	return errors.New(usage)
}
