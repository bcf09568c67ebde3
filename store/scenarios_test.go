package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// scenarios has the rules of stores as text. Package scenario runs them on a client of a server, and
// on a prefix; the tests here run them on what this package's tests alone can make.
const scenarios = "../internal/scenario/testdata"

// TestScenariosOfADurableStore runs the scenarios, those in which the store restarts included, on clients
// of a durable store.
func TestScenariosOfADurableStore(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "a durable store",
		Has:  []scenario.Feature{scenario.Whole, scenario.LimitsOf, scenario.Rights, scenario.Restarts},
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			dir := testcluster.Scratch(t)
			open := func() *store.Memory { return &store.Memory{Limits: s.Limits, Dir: dir} }
			return scenario.Restarting(t, s, open, func(backup string) error {
				dir = testcluster.Scratch(t)
				return store.Restore(backup, dir)
			})
		},
	})
}

func TestScenariosOverTLS(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "a client with TLS and a secret",
		Has:  []scenario.Feature{scenario.Whole, scenario.LimitsOf},
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			f := newTLSFiles(t) // here, because the time of the scenario is another one
			l := scenario.Listen(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}, TLS: serverTLS(t, f.server()), Access: []store.Access{all("s")}})
			return func(string) scenario.Session {
				return l.Dial(t, &store.DialOptions{Secret: secretOf("s"), TLS: f.client().Client})
			}
		},
	})
}

func TestScenariosThroughARelay(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "a client of a relay",
		Has:  []scenario.Feature{scenario.Whole, scenario.LimitsOf, scenario.Rights, scenario.Relays},
		Lag:  10 * time.Millisecond,
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			l := scenario.Listen(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}})
			up := &testcluster.Links{Connect: l.Conn}
			r, err := store.NewRelay(t.Context(), "muster://127.0.0.1:1", &store.DialOptions{Dial: up.Dial})
			require.NoError(t, err)
			behind := scenario.Clients(t, &store.Server{Engine: r}, s)
			return func(name string) scenario.Session {
				if strings.HasPrefix(name, "direct") {
					return l.Dial(t, new(store.DialOptions))
				}
				c := behind(name)
				c.Stop, c.Restart = up.Cut, up.Mend
				return c
			}
		},
	})
}

// TestScenariosOverSockets runs the scenarios without a clock over TCP, where servers and relays read many
// connections in one goroutine.
func TestScenariosOverSockets(t *testing.T) {
	for name, backend := range map[string]func(t *testing.T, s scenario.Settings) store.Backend{
		"store": func(_ *testing.T, s scenario.Settings) store.Backend { return &store.Memory{Limits: s.Limits} },
		"relay": func(t *testing.T, s scenario.Settings) store.Backend {
			up := serve(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}}, tcp)
			r, err := store.NewRelay(t.Context(), "muster://"+up.addr, nil)
			require.NoError(t, err)
			return r
		},
		"durable store": func(t *testing.T, s scenario.Settings) store.Backend {
			return &store.Memory{Limits: s.Limits, Dir: testcluster.Scratch(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario.Run(t, scenarios, scenario.Engine{
				Name: name + " over TCP",
				Has:  []scenario.Feature{scenario.Whole, scenario.LimitsOf},
				Real: true,
				Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
					e := backend(t, s)
					t.Cleanup(func() { _ = e.Close() })
					srv := serve(t, &store.Server{Engine: e}, tcp)
					return func(string) scenario.Session {
						links := new(testcluster.Links)
						c, err := store.Dial(t.Context(), srv.addr, &store.DialOptions{Dial: links.Dial})
						require.NoError(t, err)
						return scenario.Session{Engine: c.Engine(), Links: links}
					}
				},
			})
		})
	}
}
