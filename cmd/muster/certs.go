package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/spf13/cobra"
)

func newCerts() *cobra.Command {
	var o certs.Options
	cmd := &cobra.Command{
		Use:   "certs DIR",
		Short: "Make certificates for the server and its clients",
		Long: `Make certificates for the server and its clients, in the directory DIR.

The first call makes a certificate authority (ca.pem, ca-key.pem), and signs a certificate for the
server (server.pem) and one for each --name, and its key (NAME.pem, NAME-key.pem). Where
there is an authority already, it signs what --host and --name ask for. Existing files are not
changed: to renew a certificate, move it and its key away first.

Server and clients need ca.pem; a client also needs its own pair. ca-key.pem only signs new ones.

  muster serve --tls-cert DIR/server.pem --tls-key DIR/server-key.pem --tls-ca DIR/ca.pem \
    --require-client-cert
  export MUSTER_TLS_CA=DIR/ca.pem MUSTER_TLS_CERT=DIR/client.pem MUSTER_TLS_KEY=DIR/client-key.pem
  muster set key value --store muster://127.0.0.1:7070`,
		Example: `  muster certs tls
  muster certs tls --host node7,10.0.0.7 --name trainer,viewer
  muster certs tls --name another --days 30`,
		Args: operands("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error { return makeCerts(cmd, args[0], o) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Hosts, "host", nil, "`names` of the server: DNS names, IP addresses (default localhost, 127.0.0.1, ::1, this host)")
	f.StringSliceVar(&o.Names, "name", nil, "`names` of clients; each gets a certificate (default client)")
	f.IntVar(&o.Days, "days", 365, "validity in `days`")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return cmd
}

func makeCerts(cmd *cobra.Command, dir string, o certs.Options) error {
	for name, values := range map[string][]string{"host": o.Hosts, "name": o.Names} {
		if cmd.Flags().Changed(name) && len(values) == 0 {
			return usagef(cmd, "--%s is empty", name)
		}
	}
	switch err := o.Check(); {
	case dir == "":
		return usagef(cmd, "DIR is empty")
	case o.Days < 1:
		return usagef(cmd, "--days %d: it must be positive", o.Days)
	case err != nil:
		return usagef(cmd, "%v", err)
	}
	made, err := certs.Make(dir, o)
	if err != nil {
		return fmt.Errorf("no certificates made: %w", err)
	}
	out := cmd.OutOrStdout()
	ink := inkOf(out)
	if _, err := fmt.Fprintf(out, "Made in %s, valid until %s:\n", printable(dir), made.Until.Local().Format(time.DateOnly)); err != nil {
		return err
	}
	for _, name := range made.Files {
		fmt.Fprintf(out, "  %-16s  %s\n", name, ink.dim(whoseFile(name)))
	}
	return nil
}

// whoseFile describes who needs a file and for what.
func whoseFile(name string) string {
	switch base, isKey := strings.CutSuffix(strings.TrimSuffix(name, ".pem"), "-key"); {
	case base == "ca" && isKey:
		return "signs new certificates; keep it secret"
	case base == "ca":
		return "for server and clients"
	case base == "server":
		return "for the server"
	default:
		return fmt.Sprintf("for client %q", base)
	}
}
