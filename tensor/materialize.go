// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"github.com/cohort-ml/cohort/internal/random"
)

// materializeChunk is how many elements are made at a time: what is needed beside
// the values themselves has this size.
const materializeChunk = 1 << 18

// Materialize writes to each tensor of into the values that the tensor of [Meta] at
// the same place in from would have, had it been made on the CPU: the same bits. A
// tensor of from may be a view, such as the part of a parameter that one rank holds:
// then only the elements of the view are made. Tensors of into are dense, of the
// shape and dtype of those in from, and on a device with data.
//
// Memory of Meta remembers zeros, [Tensor.Fill], the draws of a [Generator],
// [Tensor.Scale], values from slices, and copies of what is remembered. If it was
// written by anything else, Materialize returns an *Error with the name of the tensor
// and writes nothing. Uniform numbers come from a stream that has to be run through
// from its beginning, once for each call: make what belongs together in one.
func Materialize(into, from []*Tensor) error {
	if len(into) != len(from) {
		return fmt.Errorf("tensor: materialize: %d tensors to write, %d to take the values of", len(into), len(from))
	}
	for i := range into {
		if err := wantMaterial(into[i], from[i]); err != nil {
			return err
		}
	}
	order := make([]int, len(into))
	first := make([]*words, len(into))
	anchors := make(map[*random.MT]int) // in the order of the list
	for i, t := range from {
		order[i] = i
		if o := t.storage.origin; o != nil && t.NumElems() > 0 {
			first[i] = firstWord(o.calls)
		}
		if w := first[i]; w != nil {
			if _, ok := anchors[w.anchor]; !ok {
				anchors[w.anchor] = len(anchors)
			}
		}
	}
	anchor := func(w *words) int {
		if w == nil {
			return -1
		}
		return anchors[w.anchor]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(anchor(first[a])-anchor(first[b]), cmp.Compare(first[a].position(), first[b].position()))
	})
	r := &replay{}
	for _, i := range order {
		r.begin(first[i])
		r.make(into[i], from[i])
	}
	return nil
}

// wantMaterial returns what is wrong with a pair of tensors.
func wantMaterial(into, from *Tensor) error {
	problem := func(format string, args ...any) error {
		return NewError("materialize", []*Tensor{from, into}, format, args...)
	}
	switch {
	case into == nil || from == nil:
		return problem("a tensor is nil")
	case !slices.Equal(into.shape, from.shape) || into.dtype != from.dtype:
		return problem("both must have one shape and dtype")
	case from.Device() != Meta:
		return problem("the first operand is on %s and has its values: want one on %s", from.Device().Name(), Meta.Name())
	case into.Device() == Meta:
		return problem("the second operand has %s: want one on another device", "no memory on "+Meta.Name())
	case into.storage.state != live:
		return problem("the second operand: %s", into.storage.state.why())
	case !into.IsContiguous():
		return problem("the second operand must be contiguous, its strides are %v", into.strides)
	}
	o := from.storage.origin
	if from.NumElems() == 0 || o != nil && o.lost == "" {
		return nil
	}
	why := "an operation has computed them"
	if o != nil {
		why = fmt.Sprintf("%q has written them", o.lost)
	}
	return NewError("materialize", []*Tensor{from}, "nobody remembers its values, for %s: give a tensor of %s its first values by "+
		"nn.Build, the nn.Init functions, Fill, Scale, a Generator or a copy of such values, or make it on the CPU", why, Meta.Name())
}

// replay makes calls again. It keeps places in the streams of generators, so that
// each stream is run through once.
type replay struct {
	base    *place // no further than what is made now or later needs, nil for the anchor
	start   *words // where what is made now begins in the stream
	places  map[words]*place
	scratch *Tensor
}

// place is a generator within a stream of words.
type place struct {
	mt     random.MT
	anchor *random.MT
	at     int
}

// begin goes on to what needs words from first on.
func (r *replay) begin(first *words) {
	if first == nil {
		return
	}
	for _, p := range r.places {
		r.offer(p, *first)
	}
	if r.base != nil && r.base.anchor != first.anchor {
		r.base = nil
	}
	r.start, r.places = first, make(map[words]*place)
}

// offer takes p for the base if it is a better one.
func (r *replay) offer(p *place, first words) {
	if p.anchor == first.anchor && p.at <= first.at && (r.base == nil || r.base.anchor != first.anchor || r.base.at < p.at) {
		r.base = p
	}
}

// uniform makes the elements of a draw from the one with the index at on.
func (r *replay) uniform(w words, data []float32, at int, low, high float32) {
	want := w.at + at
	p := r.places[w]
	if p == nil || p.at > want {
		p = r.behind(w.anchor, want)
		r.places[w] = p
	}
	p.mt.Skip(want - p.at)
	p.mt.Uniform(data, low, high)
	p.at = want + len(data)
}

// behind returns a place of the caller's own that is not behind want, as near as one
// is known.
func (r *replay) behind(anchor *random.MT, want int) *place {
	if r.base == nil || r.base.anchor != anchor {
		r.base = &place{mt: *anchor, anchor: anchor}
	}
	if s := r.start; s != nil && s.anchor == anchor && r.base.at < s.at && s.at <= want {
		r.base.mt.Skip(s.at - r.base.at)
		r.base.at = s.at
	}
	best := r.base
	for _, p := range r.places {
		if p.anchor == anchor && p.at <= want && (best.at > want || best.at < p.at) {
			best = p
		}
	}
	if best.at > want {
		best = &place{mt: *anchor, anchor: anchor}
	}
	p := *best
	return &p
}

// make writes the values of from, a tensor of Meta, to into.
func (r *replay) make(into, from *Tensor) {
	total := into.NumElems()
	if total == 0 {
		return
	}
	calls := from.storage.origin.calls
	flat := into.detach().Reshape(total)
	inPlace := into.Device() == CPU()
	if !inPlace {
		r.scratch = On(CPU()).Empty(into.dtype, min(total, materializeChunk))
		defer func() { r.scratch.Free(); r.scratch = nil }()
	}
	done, held := 0, 0 // elements that have been made, and those of them that wait in the scratch
	flush := func() {
		if held > 0 {
			flat.Narrow(0, done-held, held).CopyFrom(r.scratch.Narrow(0, 0, held).ToDevice(into.Device()))
			held = 0
		}
	}
	from.eachRun(func(start, n int) {
		for n > 0 {
			k := min(n, materializeChunk)
			if inPlace {
				r.play(calls, flat.Narrow(0, done, k), start)
			} else {
				if k = min(k, r.scratch.NumElems()); held+k > r.scratch.NumElems() {
					flush()
				}
				r.play(calls, r.scratch.Narrow(0, held, k), start)
				held += k
			}
			done, start, n = done+k, start+k, n-k
		}
	})
	flush()
	into.storage.version++
	runtime.KeepAlive(from)
}

// eachRun calls fn for the elements of t in row-major order: n that lie behind each
// other in memory from start on.
func (t *Tensor) eachRun(fn func(start, n int)) {
	run, outer := 1, len(t.shape)
	for outer > 0 && (t.shape[outer-1] == 1 || t.strides[outer-1] == run) {
		outer--
		run *= t.shape[outer]
	}
	index := make([]int, outer)
	for {
		start := t.offset
		for d, i := range index {
			start += i * t.strides[d]
		}
		fn(start, run)
		d := outer - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < t.shape[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// play makes calls again for the elements of memory from start on, which are those
// of dst, a dense tensor of one dim on the CPU.
func (r *replay) play(calls []call, dst *Tensor, start int) {
	for _, c := range calls {
		c.region.each(start, start+dst.NumElems(), func(at, n, stride, index int) {
			c.redo(r, &Tensor{
				storage: dst.storage, offset: dst.offset + at - start, shape: []int{n}, strides: []int{stride}, dtype: dst.dtype,
			}, index)
		})
	}
}
