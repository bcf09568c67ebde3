package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/spf13/cobra"
)

func newBackup() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "backup FILE|-",
		Short: "Copy a running store to a file",
		Long: `Copy the data of a running store with --data or --etcd, a consistent snapshot, to a file. The store
continues meanwhile. A client needs the right to everything.

FILE appears once it is complete and synced; until then, and after a kill -9, its data is in a file
.muster-….part in the same directory. An existing file is not overwritten.`,
		Example: `  muster backup store-$(date +%F).backup
  muster backup - --store muster://10.0.0.5:7070 | ssh elsewhere 'cat > store.backup'`,
		Args: operands("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.do(cmd, func(ctx context.Context, s *store.Store) error {
				if args[0] == "-" {
					_, err := s.Backup(ctx, cmd.OutOrStdout())
					return backupError(err)
				}
				return backup(ctx, cmd.ErrOrStderr(), s, args[0])
			})
		},
	}
	r.flags(cmd, time.Hour)
	return cmd
}

// backup writes a backup to a new file, which gets its name when it is complete.
func backup(ctx context.Context, log io.Writer, s *store.Store, name string) error {
	if _, err := os.Stat(name); err == nil {
		return &exit{code: exitFailed, text: name + " is there already: name another file"}
	}
	f, err := createOutput(name, 0o600, false)
	if err != nil {
		return err
	}
	defer f.discard() // does nothing after a commit
	n, err := s.Backup(ctx, f)
	if err != nil {
		return backupError(err)
	}
	if err := f.commit(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(log, "%s: %d bytes\n", name, n)
	return nil
}

// backupError distinguishes a store that failed to make the backup from one that is unavailable.
func backupError(err error) error {
	if e, ok := errors.AsType[*store.Error](err); ok && e.Err == store.ErrUnavailable { //nolint:errorlint // what a lost connection wraps is another Error
		return &exit{code: exitFailed, text: "the store cannot make a copy of itself: " + e.Detail + ": it continues; check its directory (--data) and its log"}
	}
	return err
}

func newRestore() *cobra.Command {
	var data, at string
	cmd := &cobra.Command{
		Use:   "restore FILE --data DIR|--etcd URL",
		Short: "Make a store from a backup",
		Long: `Make a store from a backup: in an empty or new directory, for "muster serve --data DIR"; or below an
empty root in an etcd, for "muster serve --etcd URL".

Keys, their TTLs and generation numbers return. Sessions, entries of their leases, and groups do
not: their clients may have continued after the backup.`,
		Example: `  muster restore store-2026-11-21.backup --data /var/lib/muster
  muster restore store-2026-11-21.backup --etcd etcd://10.0.0.1:2379/restored`,
		Args: operands("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (data == "") == (at == "") {
				return usagef(cmd, "--data DIR or --etcd URL, one of them, says where to put the store")
			}
			if at != "" {
				return restoreToEtcd(cmd, args[0], at)
			}
			err := store.Restore(args[0], data)
			if errors.Is(err, fs.ErrExist) {
				return &exit{code: exitFailed, text: fmt.Sprintf("--data %s: there is a store already: name an empty directory", data), err: err}
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "muster serve --data %s\n", data)
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "`directory` of the new store")
	cmd.Flags().StringVar(&at, "etcd", "", "`URL` of an etcd that keeps the new store, etcd://host:2379,host:2379[/root]")
	return cmd
}

// restoreToEtcd restores a backup to the etcd that a URL names.
func restoreToEtcd(cmd *cobra.Command, backup, at string) error {
	cluster, err := etcdOf(cmd, at)
	if err != nil {
		return err
	}
	client, err := cluster.Client()
	if err != nil {
		return &storeError{redacted(at), err}
	}
	defer client.Close()
	if err := etcdlog.Restore(cmd.Context(), client, backup, &etcdlog.Options{Root: cluster.Root}); err != nil {
		if errors.Is(err, etcdlog.ErrExists) {
			return &exit{code: exitFailed, text: fmt.Sprintf("--etcd %s: %v", redacted(at), etcdlog.ErrExists), err: err}
		}
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "muster serve --etcd %s\n", redacted(at))
	return err
}
