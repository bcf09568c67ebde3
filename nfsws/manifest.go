package nfsws

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

const (
	format = "muster-nfsws/1"
	// partBytes is how much one checksum is of: small enough to stay in a processor's cache between
	// reading and hashing, large enough for the checksums of a terabyte to fit in a manifest.
	partBytes = 1 << 20
	// maxManifest is the most that a reader reads before it knows that the manifest is complete.
	maxManifest = 64 << 20
)

// manifest is the file that makes a state exist. Its last line is the checksum of all lines before
// it: the output of `head -n -1 FILE | xxhsum -H3`.
type manifest struct {
	Format     string          `json:"format"`
	Rank       int             `json:"rank"`
	Generation uint64          `json:"generation"`
	Sequence   uint64          `json:"sequence"`
	ID         string          `json:"id"`
	Weights    weightsInfo     `json:"weights"`
	Config     json.RawMessage `json:"config"`
}

// weightsInfo is about the file with the weights, in the same directory.
type weightsInfo struct {
	File string     `json:"file"`
	Size int64      `json:"size"`
	Part int64      `json:"part"` // bytes that each checksum is of; the last may be of less
	Sums []checksum `json:"xxh3"`
}

// checksum is an XXH3, as text its 16 hexadecimal digits.
type checksum uint64

func (c checksum) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(c)), nil }

func (c *checksum) UnmarshalText(text []byte) error {
	sum, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil || len(text) != 16 {
		return fmt.Errorf("%q is no checksum", text)
	}
	*c = checksum(sum)
	return nil
}

const (
	tailBegin = `"xxh3":"`
	tailEnd   = "\"}\n"
	tailBytes = len(tailBegin) + 16 + len(tailEnd)
)

// encode returns the manifest's bytes, and their checksum. Config is in them as it is.
func (m *manifest) encode() (raw []byte, sum uint64, err error) {
	config := m.Config
	m.Config = nil
	head, err := json.Marshal(m)
	m.Config = config
	if err != nil {
		return nil, 0, err
	}
	raw = append(head[:len(head)-len("null}")], config...)
	raw = append(raw, ",\n"...)
	sum = xxh3.Hash(raw)
	raw = fmt.Appendf(raw, "%s%016x%s", tailBegin, sum, tailEnd)
	if len(raw) > maxManifest {
		return nil, 0, fmt.Errorf("a config of %d bytes and weights of %d make a manifest of %d, more than %d: "+
			"put large data of a config into the weights", len(config), m.Weights.Size, len(raw), maxManifest)
	}
	return raw, sum, nil
}

// parseManifest returns the manifest in raw, whose checksum is right, and the checksum.
func parseManifest(raw []byte) (m *manifest, sum uint64, err error) {
	body := raw[:max(0, len(raw)-tailBytes)]
	tail, begins := bytes.CutPrefix(raw[len(body):], []byte(tailBegin))
	tail, ends := bytes.CutSuffix(tail, []byte(tailEnd))
	if !begins || !ends {
		return nil, 0, errors.New("it does not end as a manifest does: a part is missing, or it is none")
	}
	sum, err = strconv.ParseUint(string(tail), 16, 64)
	if got := xxh3.Hash(body); err != nil || got != sum {
		return nil, 0, fmt.Errorf("its checksum is %016x, not %q as it says", got, tail)
	}
	m = new(manifest)
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, 0, err
	}
	return m, sum, nil
}

// check compares m with the name that it was found under. No string in it is used as a file name.
func (m *manifest) check(generation uint64, rank int, v Version) error {
	want := fileName(rank, v, kindWeights)
	id := fmt.Sprintf("%08x", v.ID)
	parts := (m.Weights.Size + partBytes - 1) / partBytes
	switch {
	case m.Format != format:
		return fmt.Errorf("its format is %q, not %q: use the muster that wrote it", m.Format, format)
	case m.Generation != generation || m.Rank != rank || m.Sequence != v.Sequence || m.ID != id:
		return fmt.Errorf("it is of rank %d, generation %d, sequence %d, id %q, not of its name", m.Rank, m.Generation, m.Sequence, m.ID)
	case m.Weights.File != want:
		return fmt.Errorf("its weights are in %q, not in %q", m.Weights.File, want)
	case m.Weights.Size < 0 || m.Weights.Part != partBytes || int64(len(m.Weights.Sums)) != parts:
		return fmt.Errorf("%d checksums of %d bytes each do not make %d bytes", len(m.Weights.Sums), m.Weights.Part, m.Weights.Size)
	}
	return nil
}

// config is the config as a caller gets it: nil if there is none.
func (m *manifest) config() []byte {
	if string(m.Config) == "null" {
		return nil
	}
	return m.Config
}

// checkConfig returns config as it goes into a manifest. One that is deeper than parsers go must
// not make the manifest so.
func checkConfig(config []byte) (json.RawMessage, error) {
	config = bytes.Trim(config, " \t\r\n")
	switch {
	case len(config) == 0:
		return json.RawMessage("null"), nil
	case !utf8.Valid(config):
		return nil, errors.New("the config is not UTF-8, and so no JSON")
	}
	var raw json.RawMessage
	if err := json.Unmarshal(config, &raw); err != nil {
		return nil, fmt.Errorf("the config is no JSON: %w", err)
	}
	if !json.Valid(slices.Concat([]byte("["), config, []byte("]"))) {
		return nil, errors.New("the config is nested too deeply")
	}
	return raw, nil
}
