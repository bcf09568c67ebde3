package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/wire"
)

// TestHintsForAStoreInEtcd checks that hints for a URL of an etcd name its parameters for the store:
// the flags for TLS are for etcd.
func TestHintsForAStoreInEtcd(t *testing.T) {
	t.Parallel()
	for why, want := range map[wire.Reason]string{
		wire.ReasonNoTLS:             "set store-ca in the URL",
		wire.ReasonServerCertificate: "check store-ca in the URL",
		wire.ReasonNoCertificate:     "set store-cert and store-key in the URL",
		wire.ReasonCertificate:       "check store-cert in the URL",
		wire.ReasonTLS:               "leave out store-ca, store-cert and store-key in the URL",
		wire.ReasonNoSecret:          "set --secret-file (MUSTER_SECRET_FILE)",
	} {
		assert.Equal(t, want, muster.Access("etcds://a:2379/jobs", why))
		assert.NotContains(t, muster.Access("muster://a:7070", why), "in the URL")
	}
}

// TestChangeWithoutAnAnswer checks that an error says so if the change may have been made: the answer is
// under way when the connection ends.
func TestChangeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	proxy := testcluster.NewProxy(t, strings.TrimPrefix(url, "muster://"))
	proxy.Down.Delay(3 * time.Second)
	add := start(t, "add", "n", "--store", "muster://"+proxy.Addr())
	_, err := dial(t, url).Wait(t.Context(), "n")
	require.NoError(t, err)
	proxy.Refuse(true)
	proxy.Cut(testcluster.RST)
	add.wait(t).wants(t, 5, "", "it is not known whether the change was made")
}
