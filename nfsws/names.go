package nfsws

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Version identifies one state of a rank in a generation: nothing is ever published under it again.
// It can be encoded as JSON or msgpack.
type Version struct {
	Sequence uint64 // later publishes of a rank have higher ones
	ID       uint32 // random: two processes that both run as one rank do not collide
	Sum      uint64 // the manifest's checksum, and so of all that it names
}

func (v Version) String() string { return fmt.Sprintf("%010d-%08x", v.Sequence, v.ID) }

// maxSequence is the highest that keeps names of one length, so that they sort.
const maxSequence = 9_999_999_999

// A kind of file is known by the end of its name.
type kind string

const (
	kindManifest kind = ".json"
	kindTemp     kind = ".json.tmp" // a manifest that is being written
	kindWeights  kind = ".safetensors"
)

// fileName is the name of a file within its generation's directory.
func fileName(rank int, v Version, k kind) string {
	return fmt.Sprintf("rank-%d.%v%s", rank, v, k)
}

// generationName is the name of a generation's directory. Names sort as generations do.
func generationName(g uint64) string { return fmt.Sprintf("gen-%020d", g) }

// GenerationDir is the directory of a generation in the directory of a workspace.
func GenerationDir(dir string, generation uint64) string {
	return filepath.Join(dir, generationName(generation))
}

// parseGeneration is generationName's inverse.
func parseGeneration(name string) (g uint64, ok bool) {
	digits, _ := strings.CutPrefix(name, "gen-")
	g, err := strconv.ParseUint(digits, 10, 64)
	return g, err == nil && name == generationName(g)
}

// entry is a file of ours in a generation's directory, known by its name only.
type entry struct {
	rank    int
	version Version // without Sum
	kind    kind
}

func (e entry) name() string { return fileName(e.rank, e.version, e.kind) }

// with is the file of another kind of the same state.
func (e entry) with(k kind) entry { return entry{e.rank, e.version, k} }

// parseEntry is entry.name's inverse. What it does not know is not ours.
func parseEntry(name string) (e entry, ok bool) {
	base, ext, _ := strings.Cut(name, ".")
	number, ext, _ := strings.Cut(ext, ".")
	sequence, id, _ := strings.Cut(number, "-")
	rank, err1 := strconv.Atoi(strings.TrimPrefix(base, "rank-"))
	n, err2 := strconv.ParseUint(sequence, 10, 64)
	x, err3 := strconv.ParseUint(id, 16, 32)
	e = entry{rank, Version{Sequence: n, ID: uint32(x)}, kind("." + ext)}
	switch e.kind {
	case kindManifest, kindTemp, kindWeights:
	default:
		return e, false
	}
	return e, err1 == nil && err2 == nil && err3 == nil && rank >= 0 && e.name() == name
}

// compareEntries sorts by rank, then the older first.
func compareEntries(a, b entry) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), compareVersions(a.version, b.version), strings.Compare(string(a.kind), string(b.kind)))
}

func compareVersions(a, b Version) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
}

// newest is the last manifest of rank in entries, which are sorted.
func newest(entries []entry, rank int) (v Version, ok bool) {
	for _, e := range slices.Backward(entries) {
		if e.rank == rank && e.kind == kindManifest {
			return e.version, true
		}
	}
	return Version{}, false
}
