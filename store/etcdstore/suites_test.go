package etcdstore_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// suite is the tests of a package that uses a store.
type suite struct {
	pkg string
	// at are the files in which its tests make a store in memory. Each such store becomes one over etcd: own has each rank make
	// one, by its place in the file; otherwise all of a process share one.
	at   map[string]string
	run  string
	skip []string // tests of what etcd cannot do as fast
	// short has tests with thousands of verbs, whose time is that of a store in memory, make fewer of them.
	short bool
}

// memory is how those tests make a store, and what makes one over etcd instead.
const (
	memory = "store.New(new(store.Memory))"
	etcds  = "overEtcd(t)"
)

var suites = []suite{
	{"pgroup", map[string]string{
		"main_test.go": "	s := " + memory + "\n	t.Cleanup(func() { _ = s.Close() })\n	return func(int) pgroup.Config { return pgroup.Config{Store: s} }\n" +
			"=>	open := rootOverEtcd()\n	return func(int) pgroup.Config { return pgroup.Config{Store: open(t)} }\n",
	}, "", []string{
		"TestCreateHasOneOutcome", "TestACauseReachesAllRanks", // each rank keeps its own deadline there, and causes stay where they are
		"TestChannelForEachStep", "TestARankThatHasClosedAChannelIsNamed", // and channels are kept
	}, false},
	{"gather", map[string]string{"ways_test.go": memory + "=>" + etcds, "modelopt_test.go": memory + "=>" + etcds}, "", []string{ // and of bytes on their way
		"TestDataLink", "TestConfigs(AreLarge|Refused)", "TestImpossibleOffers", "TestAnotherListsExport", "TestKilledWhileItIsWritten", "TestModelOpt0[1259]", "TestManyRanks",
	}, true},
	{"coordinator", map[string]string{
		"main_test.go": "		s := " + memory + "\n		t.Cleanup(func() { _ = s.Close() })\n		return func() *store.Store { return s }\n" +
			"=>		open := rootOverEtcd()\n		return func() *store.Store { return open(t) }\n",
	}, "", nil, false},
	{"strategy", map[string]string{"main_test.go": memory + "=>" + etcds}, "", nil, false},
}

// TestSuites runs the tests of the packages above over etcd, unchanged but for where their store is.
func TestSuites(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the tests of other packages")
	}
	addr := etcd(t)[0].client
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for _, s := range suites {
		t.Run(s.pkg, func(t *testing.T) {
			overlay := s.overlay(t, filepath.Join(root, s.pkg))
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout="+suiteTime, "-overlay="+overlay, "-short="+strconv.FormatBool(s.short), "-run="+s.run, "-skip="+s.timeless(t, filepath.Join(root, s.pkg)), "./"+s.pkg)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "MUSTER_TEST_ETCD="+addr)
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			require.NoError(t, err)
		})
	}
}

// timeless are the tests that run in a bubble, whose time passes only when nothing else happens: there is no etcd in it. Benchmarks and
// examples have stores of their own.
func (s suite) timeless(t *testing.T, dir string) string {
	t.Helper()
	names := []string{"Example"}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, f := range strings.Split(string(text), "\nfunc ")[1:] {
			name, _, _ := strings.Cut(f, "(")
			if strings.HasPrefix(name, "Test") && (strings.Contains(f, "synctest.") || strings.Contains(f, "bubble(")) {
				names = append(names, name+"$")
			}
		}
	}
	return "^(" + strings.Join(append(names, s.skip...), "|") + ")"
}

// overlay writes the files that are others for the test, and what says so to the go command.
func (s suite) overlay(t *testing.T, dir string) string {
	t.Helper()
	scratch := t.TempDir()
	replace := map[string]string{}
	write := func(name, text string) {
		at := filepath.Join(scratch, name)
		require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
		replace[filepath.Join(dir, name)] = at
	}
	for name, change := range s.at {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		from, to, _ := strings.Cut(change, "=>")
		require.Contains(t, string(text), from, name)
		write(name, strings.ReplaceAll(string(text), from, to))
	}
	text, err := os.ReadFile("testdata/overetcd.txt")
	require.NoError(t, err)
	write("overetcd_test.go", strings.Replace(string(text), "package x_test", "package "+filepath.Base(s.pkg)+"_test", 1))
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	at := filepath.Join(scratch, "overlay.json")
	require.NoError(t, os.WriteFile(at, list, 0o600))
	return at
}

// suiteTime is how long the tests of one package may take.
const suiteTime = "8m"
