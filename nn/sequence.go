// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"errors"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// sequence says where the tokens of a pass stand. Carriers that [Ctx.With] and the like
// derive share it. The zero value is tokens that follow each other from the end of the cache.
type sequence struct {
	positions *tensor.Tensor // int64 [time] or [batch, time]; nil for those that follow
	documents *tensor.Tensor // int64 [batch, time]; nil for one in each row
	masks     map[maskOf]*tensor.Tensor
}

// maskOf is what a mask of a pass depends on.
type maskOf struct {
	device             tensor.Device
	window, past, time int
}

// WithPositions returns a carrier of the same pass whose tokens stand at the given places of
// their sequences: int64 [time], or [batch, time] where rows differ. It is for strategies that
// cut sequences, such as parallel.Parallelize with an axis cp.
func (c *Ctx) WithPositions(places *tensor.Tensor) *Ctx {
	wantPlaces("positions", places, 1, 2)
	return c.withSequence(func(s *sequence) { s.positions = places })
}

// withSequence returns a carrier of the same pass with a sequence that differs in what set
// sets.
func (c *Ctx) withSequence(set func(s *sequence)) *Ctx {
	d := *c
	d.sequence = &sequence{}
	if old := c.sequence; old != nil {
		d.sequence = &sequence{positions: old.positions, documents: old.documents}
	}
	set(d.sequence)
	return &d
}

// WithDocuments returns a carrier of the same pass whose rows are packed: several documents in
// one row. documents is int64 [batch, time] and tells them apart: a token attends to tokens with
// the same number in its row alone, and positions count from the beginning of each document. The
// tokens of a document follow each other. It cannot be had together with a [KVCache].
func (c *Ctx) WithDocuments(documents *tensor.Tensor) *Ctx {
	wantPlaces("documents", documents, 2)
	return c.withSequence(func(s *sequence) { s.documents = documents })
}

// WithCounted returns a carrier of the same pass in which a language model computes its logits
// at some tokens alone, as logits [n, vocab]: those that a loss counts. places is int64 [n]
// and counts through batch·time. The output layer is the dearest of a small model with many
// tokens, and prompts do not count.
func (c *Ctx) WithCounted(places *tensor.Tensor) *Ctx {
	wantPlaces("counted places", places, 1)
	d := *c
	d.counted = places
	return &d
}

// Counted returns the rows of features [batch, time, width] that the output layer takes: of
// [Ctx.WithCounted] those [n, width], else all as they are.
func (c *Ctx) Counted(features *tensor.Tensor) *tensor.Tensor {
	if c.counted == nil {
		return features
	}
	return features.Reshape(-1, features.Dim(-1)).IndexSelect(0, c.counted)
}

func wantPlaces(what string, t *tensor.Tensor, dims ...int) {
	if t == nil {
		panic(tensor.NewError(what, nil, "the tensor is nil"))
	}
	for _, n := range dims {
		if t.DType() == tensor.Int64 && len(t.Shape()) == n {
			return
		}
	}
	panic(tensor.NewError(what, []*tensor.Tensor{t}, "wants int64 with %v dims", dims))
}

// Documents returns which document each token belongs to, int64 [batch, time], and nil where
// each row is one.
func (c *Ctx) Documents() *tensor.Tensor {
	if c.sequence == nil {
		return nil
	}
	return c.shaped(c.sequence).documents
}

// Positions returns where the next time tokens stand in their sequences: int64 [time], or [batch,
// time] where rows differ. A model that adds or turns by positions asks this, and so works where a
// row has several documents, where a cache holds the tokens before, and where ranks share a
// sequence.
func (c *Ctx) Positions(time int) *tensor.Tensor {
	on := tensor.On(c.Device())
	past := c.cache.Len()
	switch s := c.shaped(c.sequence); {
	case s == nil:
		return tensor.Arange(c.Device(), past+time).Narrow(0, past, time)
	case s.positions != nil:
		return s.wantTime(s.positions, time)
	case s.documents.Device() == tensor.Meta:
		return s.wantTime(s.documents, time) // of the right shape
	default:
		shape := s.wantTime(s.documents, time).Shape()
		return on.FromInt64(countInDocuments(s.documents.Int64s(), time), shape...)
	}
}

// Length returns how long the longest sequence of the pass is, with its next time tokens and
// those of the cache. It is not known, and known is false, where a strategy has cut the sequences
// ([Ctx.WithPositions]).
func (c *Ctx) Length(time int) (length int, known bool) {
	switch s := c.shaped(c.sequence); {
	case s == nil:
		return c.cache.Len() + time, true
	case s.positions != nil:
		return 0, false
	case s.documents.Device() == tensor.Meta:
		return time, true
	default:
		return int(slices.Max(append(countInDocuments(s.documents.Int64s(), time), -1))) + 1, true
	}
}

// wantTime fails for places of another number of tokens than a model asks for.
func (s *sequence) wantTime(places *tensor.Tensor, time int) *tensor.Tensor {
	if places.Dim(-1) != time {
		panic(tensor.NewError("positions", []*tensor.Tensor{places}, "the model asks for those of %d tokens, and the carrier has them of %d", time, places.Dim(-1)))
	}
	return places
}

// countInDocuments counts tokens from the beginning of their documents, in rows of time tokens.
func countInDocuments(documents []int64, time int) []int64 {
	at := make([]int64, len(documents))
	for i := range documents {
		if i%time != 0 && documents[i] == documents[i-1] {
			at[i] = at[i-1] + 1
		}
	}
	return at
}

// follow reports whether the tokens of the pass follow each other from the end of the cache.
func (c *Ctx) follow() bool { return c.sequence == nil }

// RoPETable returns the cosines and sines of a rotary embedding at the next time positions of the
// pass ([Ctx.Positions]): [time, len(frequencies)] each, or [batch, time, len(frequencies)]. See
// tensor.RoPE.
func (c *Ctx) RoPETable(frequencies []float64, time int) (cos, sin *tensor.Tensor) {
	if c.follow() {
		cos, sin = tensor.RoPETable(c.Device(), frequencies, c.cache.Len(), time)
	} else {
		cos, sin = tensor.RoPETableAt(c.Device(), frequencies, c.Positions(time))
	}
	return c.Tape().Const(cos), c.Tape().Const(sin)
}

// attentionMask returns which keys queries see beside what causality says: bool, and nil where
// they see all. A window of 0 is none. It is made once a pass.
func (c *Ctx) attentionMask(window, past, time int) *tensor.Tensor {
	if window == 0 || past+time <= window {
		window = 0
	}
	if window == 0 && c.Documents() == nil {
		return nil
	}
	s := c.shaped(c.sequence)
	if s == nil {
		s = &c.pass.follows
	}
	key := maskOf{c.Device(), window, past, time}
	if m := s.masks[key]; m != nil {
		return c.Tape().Const(m)
	}
	var mask *tensor.Tensor
	if window > 0 {
		keys := tensor.Arange(c.Device(), past+time)
		queries := keys.Narrow(0, past, time).Reshape(time, 1)
		mask = keys.Reshape(1, past+time).AddScalar(float64(window)).Gt(queries)
	}
	if d := s.documents; d != nil {
		if past > 0 {
			c.Fail(errors.New("packed documents cannot be had with a cache of keys: leave WithDocuments out"))
		}
		s.wantTime(d, time)
		rows, d := d.Dim(0), d.Untracked()
		same := d.Reshape(rows, 1, time, 1).Eq(d.Reshape(rows, 1, 1, time))
		if mask == nil {
			mask = same
		} else {
			mask = same.LogicalAnd(mask)
		}
	}
	mask = mask.Untracked() // which outlives the call that asks for it first
	if s.masks == nil {
		s.masks = make(map[maskOf]*tensor.Tensor)
	}
	s.masks[key] = mask
	return c.Tape().Const(mask)
}
