package doctor_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/doctor"
	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// secured starts a store with TLS and a secret, and returns its address, and a directory with the
// certificates, the secret, and another secret.
func secured(t *testing.T) (addr, dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, sub := range []string{"tls", "other"} {
		_, err := certs.Make(filepath.Join(dir, sub), certs.Options{Hosts: []string{"127.0.0.1"}, Days: 30})
		require.NoError(t, err)
	}
	for _, name := range []string{"secret", "wrong"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name+"-of-sixteen-bytes"), 0o600))
	}
	secret, err := store.ReadSecret(filepath.Join(dir, "secret"))
	require.NoError(t, err)
	files := &store.TLSFiles{Cert: filepath.Join(dir, "tls/server.pem"), Key: filepath.Join(dir, "tls/server-key.pem")}
	config, err := files.Server()
	require.NoError(t, err)
	return testcluster.Serve(t, &store.Server{TLS: config, Access: []store.Access{{Secret: secret, Write: true}}}), dir
}

// TestStore checks the findings about a store with TLS and a secret, for clients with right and
// wrong settings, and with clocks near the end of its certificate and beyond.
func TestStore(t *testing.T) {
	addr, dir := secured(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	for _, c := range lines(t, "testdata/stores.txt", "ADDR", addr, "PORT", port, "DIR", dir) {
		t.Run(c[0], func(t *testing.T) {
			days, err := strconv.Atoi(c[2])
			require.NoError(t, err)
			d := &doctor.Doctor{System: healthy(), Store: c[1], AnswerTimeout: limit / 2}
			d.System.Now = func() time.Time { return time.Now().AddDate(0, 0, days) }
			if strings.Contains(c[1], "10.0.0.2") { // no such host here
				d.System.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
				d.System.Open = func(context.Context, string) (*store.Store, error) { return nil, store.ErrUnavailable }
			}
			r := examined(t, d)
			for _, text := range c[4:] {
				wants(t, r, "store", doctor.Level(c[3]), text)
			}
		})
	}
}

// replicated is a store that returns a status.
type replicated struct {
	*store.Memory
	status store.ReplicationStatus
}

func (r *replicated) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.Op != wire.OpStatus {
		return r.Memory.Do(ctx, req, rep)
	}
	*rep = wire.Reply{}
	rep.Keys, rep.Value = wire.AppendStatus([]string{}, []byte{}, &store.Status{Replication: &r.status})
	return nil
}

// TestReplicatedStore checks the findings about the processes of a replicated store.
func TestReplicatedStore(t *testing.T) {
	standby := store.StandbyStatus{Addr: "b:7070", Lag: 3}
	behind := store.StandbyStatus{Addr: "c:7070", Lag: 1 << 20}
	for name, c := range map[string]struct {
		status store.ReplicationStatus
		level  doctor.Level
		text   string
	}{
		"two standbys": {store.ReplicationStatus{Leader: "a:7070", Term: 3, LeadingFor: time.Hour, Standbys: []store.StandbyStatus{standby, behind}}, doctor.OK, "a:7070 leads, in term 3, for 1h0m0s; standbys: b:7070, c:7070"},
		"one behind":   {store.ReplicationStatus{Leader: "a:7070", Term: 3, Standbys: []store.StandbyStatus{standby, behind}}, doctor.Warning, "standbys are behind the leader: c:7070 by 1048576 entries"},
		"no standby":   {store.ReplicationStatus{Leader: "a:7070", Term: 1, LeadingFor: time.Second}, doctor.Warning, "a:7070 leads, in term 1, for 1s; there is no standby"},
		"no leader":    {store.ReplicationStatus{Standbys: []store.StandbyStatus{standby}}, doctor.Problem, "no process leads the store"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &doctor.Doctor{System: healthy(), Store: "etcd://127.0.0.1:1/jobs", AnswerTimeout: limit / 2}
			d.System.Open = func(context.Context, string) (*store.Store, error) {
				return store.New(&replicated{new(store.Memory), c.status}), nil
			}
			wants(t, examined(t, d), "store", c.level, c.text)
		})
	}
}

// TestStoreInAJob checks that of a job's ranks only the first one checks the store.
func TestStoreInAJob(t *testing.T) {
	r, errs := job(t, 2, func(_ int, d *doctor.Doctor) {
		c, err := d.System.FromEnv()
		require.NoError(t, err)
		d.Store, d.AnswerTimeout = c.Address, limit/2
	})
	require.NoError(t, errors.Join(errs...))
	f := wants(t, r, "store", doctor.OK, "the store grants access")
	require.Equal(t, []int{0}, f.Ranks)
}
