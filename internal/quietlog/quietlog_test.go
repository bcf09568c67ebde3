package quietlog_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/internal/quietlog"
)

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := quietlog.New(slog.New(slog.NewTextHandler(&b, nil))).With("server", 1)
		for range 5000 {
			l.Warn("refused")
			l.Info("of no peer's making")
		}
		l.Warn("lost")
		assert.Equal(t, quietlog.MaxPerSecond, strings.Count(b.String(), "msg=refused"))
		assert.Equal(t, 5000, strings.Count(b.String(), "of no peer"))
		assert.Contains(t, b.String(), "msg=lost", "another message has its own limit")
		b.Reset()
		time.Sleep(time.Second)
		l.Warn("refused")
		l.Warn("refused")
		assert.Equal(t, 1, strings.Count(b.String(), "server=1 dropped=4900\n"), b.String())
	})
}
