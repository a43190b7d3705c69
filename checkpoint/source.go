// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// Source is where tensors are loaded from: a section of a checkpoint
// ([Checkpoint.Source]), a safetensors file, a folder of shards (package
// checkpoint/huggingface), or one of these under other names ([Rename]). A source
// whose tensors lie in boxes is a [BoxSource] too. Several goroutines may read at the
// same time.
type Source interface {
	Name() string // for messages
	Infos() []safetensors.Info
	// ReadTensor reads a tensor's bytes into dst, which must be exactly as long.
	ReadTensor(name string, dst []byte) error
	// ReadRange reads len(dst) bytes of a tensor from its byte offset on.
	ReadRange(name string, dst []byte, offset int64) error
}

// BoxSource is a source that reads boxes of tensors.
type BoxSource interface {
	Source
	// ReadBox reads the elements of a box, which begins at start, into dst. The
	// elements lie densely in dst, which must be exactly as long.
	ReadBox(name string, start, shape []int, dst []byte) error
}

// ReadBox reads a box of a tensor of a source, see [BoxSource]. info describes the tensor. Of
// a source that reads only ranges it reads the ranges that it needs.
func ReadBox(src Source, info safetensors.Info, start, shape []int, dst []byte) error {
	if s, ok := src.(BoxSource); ok {
		return s.ReadBox(info.Name, start, shape, dst)
	}
	if err := checkBox(info, start, shape, dst); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", src.Name(), err)
	}
	switch {
	case len(dst) == 0:
		return nil
	case slices.Equal(shape, info.Shape):
		return src.ReadTensor(info.Name, dst)
	}
	r := gathering{src: src, name: info.Name, dst: dst}
	err := stretches(shape, info.Shape, start, shape, make([]int, len(shape)), info.DType.NumBits()/8, r.add)
	if err != nil {
		return err
	}
	return r.flush()
}

// maxRead is how much is read at a time of stretches that lie scattered in a file.
const maxRead = 1 << 20

// gathering reads stretches of a tensor, as many at a time as one read holds.
type gathering struct {
	src     Source
	name    string
	dst     []byte
	pending []stretch
	scratch []byte
}

type stretch struct{ from, to, n int }

func (g *gathering) add(from, to, n int) error {
	if len(g.pending) > 0 && from+n-g.pending[0].from > maxRead {
		if err := g.flush(); err != nil {
			return err
		}
	}
	g.pending = append(g.pending, stretch{from, to, n})
	return nil
}

func (g *gathering) flush() error {
	if len(g.pending) == 0 {
		return nil
	}
	first, last := g.pending[0], g.pending[len(g.pending)-1]
	defer func() { g.pending = g.pending[:0] }()
	if len(g.pending) == 1 {
		return g.src.ReadRange(g.name, g.dst[first.to:first.to+first.n], int64(first.from))
	}
	span := last.from + last.n - first.from
	g.scratch = slices.Grow(g.scratch[:0], span)[:span]
	if err := g.src.ReadRange(g.name, g.scratch, int64(first.from)); err != nil {
		return err
	}
	for _, s := range g.pending {
		copy(g.dst[s.to:s.to+s.n], g.scratch[s.from-first.from:])
	}
	return nil
}

// Rename returns src with every tensor called what name returns for it; one for
// which that is "" is left out. Two tensors that would have one name are an
// error.
func Rename(src Source, name func(string) string) (Source, error) {
	return Select(src, func(from string) (string, bool) {
		to := name(from)
		return to, to != ""
	})
}

// Select is [Rename] for sources of which a tensor may have the empty name, as in PyTorch's
// dicts: it leaves a tensor out where name returns false.
func Select(src Source, name func(string) (to string, ok bool)) (Source, error) {
	r := &renamed{Source: src, original: map[string]string{}, byName: map[string]safetensors.Info{}}
	for _, info := range src.Infos() {
		from, ok := info.Name, false
		if info.Name, ok = name(from); !ok {
			continue
		}
		if other, taken := r.original[info.Name]; taken {
			return nil, fmt.Errorf("checkpoint: %s: the tensors %q and %q are both for %q", src.Name(), other, from, info.Name)
		}
		r.original[info.Name] = from
		r.byName[info.Name] = info
		r.infos = append(r.infos, info)
	}
	return r, nil
}

type renamed struct {
	Source
	infos    []safetensors.Info
	original map[string]string // by new name
	byName   map[string]safetensors.Info
}

func (r *renamed) Infos() []safetensors.Info { return r.infos }

func (r *renamed) ReadTensor(name string, dst []byte) error {
	from, err := r.find(name)
	if err != nil {
		return err
	}
	return r.Source.ReadTensor(from, dst)
}

func (r *renamed) ReadRange(name string, dst []byte, offset int64) error {
	from, err := r.find(name)
	if err != nil {
		return err
	}
	return r.Source.ReadRange(from, dst, offset)
}

// ReadBox is as in [BoxSource].
func (r *renamed) ReadBox(name string, start, shape []int, dst []byte) error {
	from, err := r.find(name)
	if err != nil {
		return err
	}
	info := r.byName[name]
	info.Name = from
	return ReadBox(r.Source, info, start, shape, dst)
}

// find returns the source's name of a tensor.
func (r *renamed) find(name string) (string, error) {
	from, ok := r.original[name]
	if !ok {
		return "", fmt.Errorf("checkpoint: %s has no tensor for %q", r.Name(), name)
	}
	return from, nil
}
