// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"encoding/binary"
	"fmt"

	"github.com/cohort-ml/cohort/internal/random"
)

// Generator is a source of random numbers: a value with an owner, never a
// global. Uniform numbers and permutations are PyTorch's bit for bit for the
// same seed; normal ones come from a counter-based generator and depend on
// the seed and on how many tensors were drawn before, not on threads. A
// Generator belongs to one goroutine.
type Generator struct {
	mt     *random.MT
	normal random.Philox
	stream uint64 // of the next tensor of normal numbers, or dropout

	// Words of mt that tensors of Meta have taken and mt has not given yet, and its
	// state before them. Who plans with a model needs none of them.
	owed   int
	anchor *random.MT
}

// NewGenerator returns a generator. Two with one seed give the same numbers.
func NewGenerator(seed int64) *Generator {
	return &Generator{mt: random.NewMT(seed), normal: random.Philox{Key: uint64(seed)}}
}

// Perm returns a permutation of 0 … n-1: PyTorch's randperm.
func (g *Generator) Perm(n int) []int { return g.twister().Perm(n) }

// Float64 returns a number in [0, 1).
func (g *Generator) Float64() float64 { return g.twister().Float64() }

// Uniform overwrites a contiguous float32 tensor with numbers from [lo, hi).
func (g *Generator) Uniform(t *Tensor, lo, hi float64) {
	if t.Device() != Meta {
		t.overwrite("uniform", func(data []float32) { g.twister().Uniform(data, float32(lo), float32(hi)) })
		return
	}
	t.wantDrawable("uniform")
	if g.owed == 0 {
		state := *g.mt
		g.anchor = &state
	}
	w := words{g.anchor, g.owed}
	g.owed += t.NumElems()
	say := func() string {
		return fmt.Sprintf("uniform in [%v, %v) from word %d of generator %x on", lo, hi, w.at, digest(w.anchor.State()))
	}
	t.drawn(&w, say, func(r *replay, data []float32, at int) { r.uniform(w, data, at, float32(lo), float32(hi)) })
}

// Normal overwrites a contiguous float32 tensor with normal numbers.
func (g *Generator) Normal(t *Tensor, mean, std float64) {
	stream := g.nextStream()
	normal := g.normal
	draw := func(data []float32, at int) { normal.Normal(data, stream, uint64(at), float32(mean), float32(std)) }
	if t.Device() != Meta {
		t.overwrite("normal", func(data []float32) { draw(data, 0) })
		return
	}
	t.wantDrawable("normal")
	say := func() string {
		return fmt.Sprintf("normal of mean %v and deviation %v, tensor %d of seed %d", mean, std, stream, int64(normal.Key))
	}
	t.drawn(nil, say, func(_ *replay, data []float32, at int) { draw(data, at) })
}

// twister returns the generator of uniform numbers, once it has given what tensors
// of Meta have taken.
func (g *Generator) twister() *random.MT {
	g.mt.Skip(g.owed)
	g.owed, g.anchor = 0, nil
	return g.mt
}

// overwrite sets all elements of a contiguous float32 tensor to what draw makes.
// They are drawn by the CPU, for every device draws the same numbers.
func (t *Tensor) overwrite(op string, draw func(data []float32)) {
	if t.Device() == CPU() {
		t.WithFloat32s(draw)
		return
	}
	t.wantDrawable(op)
	data := make([]float32, t.NumElems())
	draw(data)
	t.storage.version++
	t.storage.write(t.offset*t.dtype.Size(), bytesOf(data))
}

// wantDrawable fails for a tensor that draws cannot overwrite.
func (t *Tensor) wantDrawable(op string) {
	t.wantDType(op, Float32)
	t.check(op)
	if !t.IsContiguous() {
		fail(op, []*Tensor{t}, "wants a contiguous tensor, strides are %v; call Contiguous first", t.strides)
	}
}

// State returns what a generator needs to go on from here; see SetState.
func (g *Generator) State() []byte {
	head := binary.LittleEndian.AppendUint64(nil, g.normal.Key)
	head = binary.LittleEndian.AppendUint64(head, g.stream)
	return append(head, g.twister().State()...)
}

// SetState makes g go on where the generator that gave state was.
func (g *Generator) SetState(state []byte) error {
	if len(state) < 16 {
		return fmt.Errorf("tensor: the state of a generator has %d bytes, fewer than its head of 16", len(state))
	}
	if err := g.mt.SetState(state[16:]); err != nil {
		return err
	}
	g.owed, g.anchor = 0, nil
	g.normal.Key = binary.LittleEndian.Uint64(state)
	g.stream = binary.LittleEndian.Uint64(state[8:])
	return nil
}
