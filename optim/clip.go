// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// gradOf returns the gradient's elements, those of a gradient by rows too; nil
// if there is none.
func gradOf(p *nn.Parameter) *tensor.Tensor {
	if rows := p.RowGrad(); rows != nil {
		return rows.Rows
	}
	return p.Grad()
}

// gradsOf returns the gradients that there are.
func gradsOf(params []*nn.Parameter) []*tensor.Tensor {
	grads := make([]*tensor.Tensor, 0, len(params))
	for _, p := range params {
		if g := gradOf(p); g != nil {
			grads = append(grads, g)
		}
	}
	return grads
}

// ClipGradNorm returns the Euclidean norm of all gradients together and the
// factor, at most 1, that brings it down to maxNorm: pass it to Step. Both are
// float64 tensors of no dims on the first parameter's device, computed by that
// device; norm.Item() waits for the number. Nothing is written. A gradient that
// is not finite gives a norm that is not and the factor NaN, with which Step
// leaves the update out: see [CheckGradNorm] and Optimizer.Skipped. Where this rank has
// shards, that is a mistake, for the strategy knows the norm of all ranks. Where parameters
// are on several devices, the sums of the others are copied to the first.
func ClipGradNorm(params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor) {
	for i, p := range params {
		if whole := p.Whole(); whole != nil {
			fail("clip", p, i, "this rank has a shard of the parameter, whose shape is %v, so the norm would be that of one rank: clip by ClipGradNorm of the strategy", whole)
		}
	}
	dev := tensor.CPU()
	if len(params) > 0 {
		dev = params[0].Data().Device()
	}
	var squares *tensor.Tensor
	for grads := gradsOf(params); len(grads) > 0; {
		n := slices.IndexFunc(grads, func(g *tensor.Tensor) bool { return g.Device() != grads[0].Device() })
		if n < 0 {
			n = len(grads)
		}
		sum := tensor.SumSquaresAll(grads[:n]...).ToDevice(dev)
		if squares != nil {
			sum = squares.Add(sum)
		}
		squares, grads = sum, grads[n:]
	}
	if squares == nil {
		norm = tensor.New(dev, tensor.Float64)
	} else {
		norm = squares.Sqrt()
	}
	return norm, ClipScale(norm, maxNorm)
}

// ClipScale returns the factor, at most 1, that brings a norm down to maxNorm:
// min(1, maxNorm/(norm+1e-6)), and NaN for a norm that is not finite. It is a
// float64 tensor of no dims on the norm's device. [ClipGradNorm] is for gradients that are all
// here; this is for a norm over several processes.
func ClipScale(norm *tensor.Tensor, maxNorm float64) *tensor.Tensor {
	return tensor.ClipScale(norm, maxNorm)
}

// ClipGradValue bounds every element of every gradient by -limit and limit, in
// place. NaN stays.
func ClipGradValue(params []*nn.Parameter, limit float64) {
	c := checks{op: "clip grad value"}
	c.want(limit >= 0, "the limit is %v: it must not be negative", limit)
	c.end()
	tensor.ClampAll(gradsOf(params), limit)
}

// NonFiniteError says that the norm of gradients is NaN or infinite, and in
// which parameters that begins.
type NonFiniteError struct {
	Norm   float64
	Params []string
}

func (e *NonFiniteError) Error() string {
	const most = 8
	names := e.Params
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	return fmt.Sprintf("the norm of the gradients is %v: look at %s%s", e.Norm, strings.Join(names, ", "), more)
}

// CheckGradNorm returns nil for a norm that is finite, as read by Item, and else a
// [NonFiniteError] that names the parameters whose gradients are not, or whose
// squares overflow. It is PyTorch's error_if_nonfinite, and costs nothing as
// long as all is well.
func CheckGradNorm(params []*nn.Parameter, norm float64) error {
	if !math.IsNaN(norm) && !math.IsInf(norm, 0) {
		return nil
	}
	e := &NonFiniteError{Norm: norm}
	for i, p := range params {
		if g := gradOf(p); g != nil {
			if s := g.SumSquares(); math.IsNaN(s) || math.IsInf(s, 0) {
				e.Params = append(e.Params, nameOf(p, i))
			}
		}
	}
	return e
}
