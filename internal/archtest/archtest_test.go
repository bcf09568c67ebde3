package archtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTree holds the tree that we are in to the rules.
func TestTree(t *testing.T) {
	pkgs, err := load(os.DirFS("../.."))
	require.NoError(t, err)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, p := range pkgs {
				for _, line := range rule(p) {
					t.Error(line)
				}
			}
		})
	}
}

// TestFloors holds the table itself to its rule: what a room lists lies below it.
func TestFloors(t *testing.T) {
	for floor, rooms := range floors {
		for _, r := range rooms {
			for _, name := range r.may {
				base := strings.TrimSuffix(name, "/...")
				_, below, ok := find(base)
				parent := strings.HasPrefix(r.name, base+"/")
				switch {
				case name == "...":
				case !ok:
					t.Errorf("%s may import %s, which is in no room", r.name, name)
				case below >= floor && floor > 0 && !parent:
					t.Errorf("%s on floor %d may import %s on floor %d", r.name, floor, name, below)
				}
			}
		}
	}
}
