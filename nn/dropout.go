// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// Dropout sets elements to zero with probability P in training and does
// nothing in evaluation; see tensor.Dropout. A training pass needs a generator:
// [WithGenerator].
type Dropout struct {
	P float64
}

// NewDropout returns the module; p is in [0, 1].
func NewDropout(p float64) *Dropout {
	c := checks{op: "new dropout"}
	c.share("p", p)
	c.end()
	return &Dropout{P: p}
}

// Forward drops elements of x. Of a part of a larger tensor ([Ctx.WithCut]) it drops what
// it would drop of the whole.
func (d *Dropout) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	if !c.Training() {
		return x
	}
	return tensor.DropoutPart(x, d.P, c.Generator(), c.cuts...)
}

// WithCut returns a carrier of the same pass in which the inputs of [Dropout] are parts of
// larger tensors: of dim cut.Dim, counted from the front, they have the runs of cut. It is for
// strategies that cut activations. Cuts of one dim nest: the runs of this cut count within what
// the carrier's cut has left.
func (c *Ctx) WithCut(cut tensor.Cut) *Ctx {
	d := *c
	d.cuts = nil
	for _, outer := range c.cuts {
		if outer.Dim == cut.Dim {
			cut = cutWithin(outer, cut)
		} else {
			d.cuts = append(d.cuts, outer)
		}
	}
	d.cuts = append(d.cuts, cut)
	return &d
}

// cutWithin returns a cut of what another cut has left as a cut of the whole dim.
func cutWithin(outer, inner tensor.Cut) tensor.Cut {
	cut := tensor.Cut{Dim: outer.Dim, Size: outer.Size}
	for _, r := range inner.Runs {
		at := 0 // where a run of the outer cut begins in what it has left
		for _, o := range outer.Runs {
			first, end := max(r[0], at), min(r[1], at+o[1]-o[0])
			if first < end {
				cut.Runs = append(cut.Runs, [2]int{o[0] + first - at, o[0] + end - at})
			}
			at += o[1] - o[0]
		}
	}
	return cut
}

// WithAttentionPart returns a carrier of the same pass in which attention is a part of a larger
// one; see tensor.AttentionPart. It is for strategies that cut heads or sequences.
func (c *Ctx) WithAttentionPart(p tensor.AttentionPart) *Ctx {
	d := *c
	d.part = p
	return &d
}

// AttentionPart returns which part of a larger attention those of the pass are. The zero value is
// whole ones.
func (c *Ctx) AttentionPart() tensor.AttentionPart { return c.part }
