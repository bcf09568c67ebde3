package nfsws

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Write publishes config, a JSON value, and weights as this rank's state; either may be nil. Other
// ranks see all of it or nothing, and it is durable when Write returns. Neither may change before
// that.
//
// It replaces the previous state, whose files stay until the next Write, for its readers, or, with
// Options.Accumulate, until Discard. After an error the previous state is still the newest, unless
// the error says that the file system could not report whether the last step was done. The next
// Write or Open removes what a failed Write leaves.
func (w *Workspace) Write(ctx context.Context, config []byte, weights map[string]*tensor.Tensor) (Version, error) {
	return change(ctx, w, "write", func(ctx context.Context) (Version, error) { return w.write(ctx, config, weights) })
}

func (w *Workspace) write(ctx context.Context, config []byte, weights map[string]*tensor.Tensor) (Version, error) {
	raw, err := checkConfig(config)
	if err != nil {
		return Version{}, err
	}
	if _, err := w.current(); err != nil {
		return Version{}, err
	}
	own, err := w.own()
	if err != nil {
		return Version{}, err
	}
	if !w.accumulate && w.settled(own) {
		w.sweepReplaced(own)
	}
	v, err := w.nextVersion()
	if err != nil {
		return Version{}, err
	}
	p := &publish{w: w, version: v}
	if err := p.run(ctx, raw, weights); err != nil {
		return Version{}, err
	}
	w.last.Store(&p.version)
	return p.version, nil
}

// settled reports whether the newest state will outlast a crash, so that those before it may be
// removed. This handle knows that of a state that it has published; another one may be from a Write
// that died, or failed, before it made the state durable.
func (w *Workspace) settled(own []entry) bool {
	v, ok := newest(own, w.rank)
	last := w.last.Load()
	return len(own) == 0 || ok && last != nil && compareVersions(v, *last) == 0 || w.syncGeneration() == nil
}

func (w *Workspace) nextVersion() (Version, error) {
	if w.sequence >= maxSequence {
		return Version{}, at(generationName(w.generation), fmt.Errorf("sequence %d is the last: begin a new generation", w.sequence))
	}
	w.sequence++
	return Version{Sequence: w.sequence, ID: rand.Uint32()}, nil
}

// publish is one Write. The order makes it atomic: weights, manifest, and the directory with both
// of them are durable before the manifest gets its name.
type publish struct {
	w       *Workspace
	version Version
	made    []kind // files that there are
	weights file
	raw     []byte // of the manifest
}

func (p *publish) name(k kind) string { return p.w.in(fileName(p.w.rank, p.version, k)) }

func (p *publish) run(ctx context.Context, config json.RawMessage, weights map[string]*tensor.Tensor) error {
	err := p.create(ctx, config, weights)
	if err == nil {
		err = p.sync()
	}
	if err == nil {
		err = p.confirm()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		for _, k := range p.made {
			p.w.remove(p.name(k))
		}
		return err
	}
	return p.commit(ctx)
}

// confirm checks that the weights still exist: the Open of another process of this rank may have
// removed them as unfinished.
func (p *publish) confirm() error {
	f, _, err := p.w.volume.Open(p.name(kindWeights))
	if err != nil {
		err = at(p.name(kindWeights), err)
		return at(p.name(kindWeights), fmt.Errorf("%w: is there another process of this rank and generation?", err))
	}
	f.Close()
	return nil
}

// make makes a file that Write removes again if it fails.
func (p *publish) make(k kind) (file, error) {
	f, err := p.w.volume.Create(p.name(k))
	if err != nil {
		return nil, at(p.name(k), err)
	}
	p.made = append(p.made, k)
	return f, nil
}

// create writes the weights, without making them durable, and makes the manifest.
func (p *publish) create(ctx context.Context, config json.RawMessage, weights map[string]*tensor.Tensor) error {
	f, err := p.make(kindWeights)
	if err != nil {
		return err
	}
	p.weights = f
	parts := &partWriter{ctx: ctx, file: f}
	if err := safetensors.Write(parts, weights, nil); err != nil {
		f.Close()
		return at(p.name(kindWeights), err)
	}
	m := &manifest{
		Format: format, Rank: p.w.rank, Generation: p.w.generation, Config: config,
		Sequence: p.version.Sequence, ID: fmt.Sprintf("%08x", p.version.ID),
		Weights: weightsInfo{
			File: fileName(p.w.rank, p.version, kindWeights),
			Size: parts.total, Part: partBytes, Sums: parts.finish(),
		},
	}
	if p.raw, p.version.Sum, err = m.encode(); err != nil {
		f.Close()
	}
	return err
}

// sync makes the weights durable and, meanwhile, the manifest and the directory.
func (p *publish) sync() error {
	var errWeights error
	var wg sync.WaitGroup
	wg.Go(func() { errWeights = at(p.name(kindWeights), syncClose(p.weights, nil)) })
	err := p.writeTemp()
	if err == nil {
		err = p.w.syncGeneration()
	}
	wg.Wait()
	return cmp.Or(errWeights, err)
}

func (p *publish) writeTemp() error {
	f, err := p.make(kindTemp)
	if err != nil {
		return err
	}
	_, err = f.Write(p.raw)
	return at(p.name(kindTemp), syncClose(f, err))
}

// syncClose makes f durable, unless err is set, and closes it: on NFS, close may report an error of
// an earlier write.
func syncClose(f file, err error) error {
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// commit gives the manifest its name.
func (p *publish) commit(ctx context.Context) error {
	err := p.w.volume.Rename(p.name(kindTemp), p.name(kindManifest))
	if err != nil {
		err = p.look(ctx, at(p.name(kindManifest), err))
	}
	if err != nil {
		return err
	}
	if err := p.w.syncGeneration(); err != nil {
		return p.retract(err)
	}
	return nil
}

// retract removes the manifest, which may not outlast a crash. Its weights are removed only when
// that is durable.
func (p *publish) retract(err error) error {
	if p.w.volume.Remove(p.name(kindManifest)) != nil || p.w.syncGeneration() != nil {
		return fmt.Errorf("the state may be published, if nothing crashes: %w", err)
	}
	p.w.remove(p.name(kindWeights))
	return err
}

// look finds out whether a rename that reported an error was done. The answer to one that was done
// may have been lost, and its repetition found nothing left to rename. It was certainly not done
// only if the old name could be removed.
func (p *publish) look(ctx context.Context, err error) error {
	if p.w.volume.Remove(p.name(kindTemp)) == nil {
		p.w.remove(p.name(kindWeights))
		return err
	}
	pace := shortPace()
	for begun := time.Now(); time.Since(begun) < staleTime; {
		if p.landed() {
			return nil
		}
		if pace.wait(ctx) != nil {
			break
		}
	}
	return fmt.Errorf("the state may be published: %w", err)
}

// landed reports whether the manifest has its name, and is the one that was written.
func (p *publish) landed() bool {
	own, err := p.w.own()
	if err != nil {
		return false
	}
	if v, ok := newest(own, p.w.rank); !ok || compareVersions(v, p.version) != 0 {
		return false
	}
	raw, err := p.w.readManifest(p.name(kindManifest))
	return err == nil && string(raw) == string(p.raw)
}

// partWriter writes to a file, and keeps a checksum of each part. It hashes a block and then writes
// it, while it is in the processor's cache.
type partWriter struct {
	ctx   context.Context
	file  file
	hash  xxh3.Hasher
	total int64
	sums  []checksum
}

// blockBytes is how much is hashed, then written.
const blockBytes = 256 << 10

func (p *partWriter) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if err = context.Cause(p.ctx); err != nil {
			break
		}
		room := partBytes - int(p.total%partBytes)
		block := b[n:min(len(b), n+blockBytes, n+room)]
		_, _ = p.hash.Write(block)
		var wrote int
		wrote, err = p.file.Write(block)
		n += wrote
		p.total += int64(wrote)
		if len(block) == room {
			p.cut()
		}
	}
	return n, err
}

func (p *partWriter) cut() {
	p.sums = append(p.sums, checksum(p.hash.Sum64()))
	p.hash.Reset()
}

// finish returns the checksums.
func (p *partWriter) finish() []checksum {
	if p.total%partBytes != 0 {
		p.cut()
	}
	return p.sums
}
