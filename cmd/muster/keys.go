package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newKeys() *cobra.Command {
	var r remote
	var long, asJSON, all bool
	cmd := &cobra.Command{
		Use:   "keys [PREFIX]",
		Short: "List the keys that start with PREFIX, in their order",
		Example: `  muster keys
  muster keys worker/ --long                 # revision, what is left of the TTL, size, value
  muster keys worker/ --json | jq -r .value  # one object a line`,
		Args: operands("[PREFIX]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if long && asJSON {
				return usagef(cmd, "--long and --json are two ways to print: choose one")
			}
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				out := bufio.NewWriter(cmd.OutOrStdout())
				show := printer(out, inkOf(cmd.OutOrStdout()), long, asJSON)
				for e, err := range s.List(ctx, first(args)) {
					if err != nil {
						return err
					}
					if !all && isHidden(e.Key) {
						continue
					}
					if err := show(e); err != nil {
						return err
					}
				}
				return out.Flush()
			})
		},
	}
	r.flags(cmd, quick)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "with revision, TTL, size and value")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "with the keys of servers and relays, which begin with a zero byte")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

// isHidden reports whether a key is one that servers and relays keep for PyTorch's processes.
func isHidden(key string) bool { return strings.HasPrefix(key, "\x00") }

// printer returns a function that prints an entry in the requested format.
func printer(w io.Writer, k ink, long, asJSON bool) func(store.Entry) error {
	if asJSON {
		enc := json.NewEncoder(plainJSON{w})
		return func(e store.Entry) error { return enc.Encode(entryOf(e)) }
	}
	if !long {
		return func(e store.Entry) error {
			_, err := fmt.Fprintln(w, printable(e.Key))
			return err
		}
	}
	head := k.bold(fmt.Sprintf("%10s  %9s  %9s  %s", "REV", "TTL", "BYTES", "KEY = VALUE")) + "\n"
	return func(e store.Entry) error {
		_, err := fmt.Fprintf(w, "%s%10d  %9s  %9d  %s %s\n", head, e.Rev, ttl(e.TTL), len(e.Value), printable(e.Key), k.dim("= "+preview(e.Value)))
		head = ""
		return err
	}
}

// entryJSON is the JSON form of an entry. A value that is not text is in base64.
type entryJSON struct {
	Key   string         `json:"key"`
	Value *string        `json:"value,omitempty"`
	Bytes []byte         `json:"value_base64,omitempty"`
	Rev   store.Revision `json:"rev"`
	TTL   float64        `json:"ttl_seconds,omitempty"`
}

func entryOf(e store.Entry) entryJSON {
	j := entryJSON{Key: e.Key, Rev: e.Rev, TTL: e.TTL.Seconds()}
	if utf8.Valid(e.Value) {
		j.Value = new(string(e.Value))
	} else {
		j.Bytes = e.Value
	}
	return j
}

// ttl returns the remaining lifetime of an entry as text.
func ttl(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.Round(100 * time.Millisecond).String()
}

// printable returns s, quoted if it contains characters that would control a terminal or break
// lines.
func printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// preview returns the beginning of a value.
func preview(b []byte) string {
	const most = 60
	if len(b) <= most {
		return printable(string(b))
	}
	return printable(string(b[:most])) + "…"
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
