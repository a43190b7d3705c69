// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// opCase is one row an operation: its gradient is checked against finite
// differences, and the gradient of its gradient likewise.
type opCase struct {
	name   string
	shapes [][]int
	apply  func(in []*Tensor) *Tensor
	// positive draws the operands from [0.5, 2], away from poles and kinks;
	// otherwise they come from ±[0.2, 1.5].
	positive bool
}

func opCases() []opCase {
	targets := FromInt64([]int64{2, IgnoreIndex, 0, 4})
	ids := FromInt64([]int64{3, 1, 3, 0, 2, 3}, 2, 3)
	return []opCase{
		{"add", [][]int{{3, 4}, {3, 4}}, func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, false},
		{"add row", [][]int{{3, 4}, {4}}, func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, false},
		{"add column", [][]int{{3, 4}, {3, 1}}, func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, false},
		{"add outer", [][]int{{2, 1, 4}, {3, 1}}, func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, false},
		{"sub", [][]int{{3, 4}, {1, 4}}, func(in []*Tensor) *Tensor { return in[0].Sub(in[1]) }, false},
		{"mul", [][]int{{2, 3, 4}, {3, 4}}, func(in []*Tensor) *Tensor { return in[0].Mul(in[1]) }, false},
		{"div", [][]int{{3, 4}, {3, 1}}, func(in []*Tensor) *Tensor { return in[0].Div(in[1]) }, true},
		{"scalars", [][]int{{5}}, func(in []*Tensor) *Tensor { return in[0].AddScalar(2).MulScalar(-3) }, false},
		{"neg", [][]int{{5}}, func(in []*Tensor) *Tensor { return in[0].Neg() }, false},
		{"exp", [][]int{{7}}, func(in []*Tensor) *Tensor { return in[0].Exp() }, false},
		{"log", [][]int{{7}}, func(in []*Tensor) *Tensor { return in[0].Log() }, true},
		{"sqrt", [][]int{{7}}, func(in []*Tensor) *Tensor { return in[0].Sqrt() }, true},
		{"reciprocal", [][]int{{7}}, func(in []*Tensor) *Tensor { return in[0].Reciprocal() }, true},
		{"tanh", [][]int{{7}}, func(in []*Tensor) *Tensor { return in[0].Tanh() }, false},
		{"erf", [][]int{{7}}, func(in []*Tensor) *Tensor { return in[0].Erf() }, false},
		{"relu", [][]int{{4, 5}}, func(in []*Tensor) *Tensor { return in[0].ReLU() }, false},
		{"gelu", [][]int{{4, 5}}, func(in []*Tensor) *Tensor { return in[0].GELU() }, false},
		{"gelu tanh", [][]int{{4, 5}}, func(in []*Tensor) *Tensor { return in[0].GELUTanh() }, false},
		{"sum", [][]int{{3, 4}}, func(in []*Tensor) *Tensor { return in[0].Mul(in[0]).Sum() }, false},
		{"sum first", [][]int{{3, 4}}, func(in []*Tensor) *Tensor { return in[0].Sum(0) }, false},
		{"sum last", [][]int{{3, 4}}, func(in []*Tensor) *Tensor { return in[0].Sum(-1) }, false},
		{"sum middle", [][]int{{2, 3, 4}}, func(in []*Tensor) *Tensor { return in[0].Sum(1) }, false},
		{"sum ends", [][]int{{2, 3, 4}}, func(in []*Tensor) *Tensor { return in[0].Sum(0, 2) }, false},
		{"mean", [][]int{{3, 4}}, func(in []*Tensor) *Tensor { return in[0].Mean(1) }, false},
		{"reshape", [][]int{{3, 4}}, func(in []*Tensor) *Tensor { return in[0].Reshape(2, -1) }, false},
		{"permute", [][]int{{2, 3, 4}}, func(in []*Tensor) *Tensor { return in[0].Permute(2, 0, 1) }, false},
		{"narrow", [][]int{{3, 5}}, func(in []*Tensor) *Tensor { return in[0].Narrow(1, 1, 3) }, false},
		{"select", [][]int{{3, 5}}, func(in []*Tensor) *Tensor { return in[0].Select(0, 2) }, false},
		{"expand", [][]int{{3, 1}}, func(in []*Tensor) *Tensor { return in[0].Expand(2, 3, 4) }, false},
		{"clone", [][]int{{3, 2}}, func(in []*Tensor) *Tensor { return in[0].T().Clone() }, false},
		{"used twice", [][]int{{3, 3}}, func(in []*Tensor) *Tensor { return in[0].MatMul(in[0].T()).Add(in[0]) }, false},
		{"matmul", [][]int{{3, 4}, {4, 5}}, func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) }, false},
		{"matmul transposed", [][]int{{4, 3}, {5, 4}}, func(in []*Tensor) *Tensor { return in[0].T().MatMul(in[1].T()) }, false},
		{"matmul batched", [][]int{{2, 3, 4}, {2, 4, 5}}, func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) }, false},
		{"matmul broadcast", [][]int{{2, 1, 3, 4}, {3, 4, 2}}, func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) }, false},
		{"matmul strided", [][]int{{3, 4, 2}, {2, 5}}, func(in []*Tensor) *Tensor { return in[0].Permute(1, 0, 2).MatMul(in[1]) }, false},
		{"linear", [][]int{{2, 3, 4}, {5, 4}, {5}}, func(in []*Tensor) *Tensor { return Linear(in[0], in[1], in[2]) }, false},
		{"linear without bias", [][]int{{3, 4}, {5, 4}}, func(in []*Tensor) *Tensor { return Linear(in[0], in[1], nil) }, false},
		{"affine", [][]int{{3, 4}, {4, 5}, {5}}, func(in []*Tensor) *Tensor { return Affine(in[0], in[1], in[2]) }, false},
		{"layer norm", [][]int{{2, 3, 6}, {6}, {6}}, func(in []*Tensor) *Tensor { return LayerNorm(in[0], in[1], in[2], 1e-5) }, false},
		{"layer norm strided", [][]int{{6, 2}, {6, 2}, {1}}, func(in []*Tensor) *Tensor {
			return LayerNorm(in[0].T(), in[1].Select(1, 1), in[2].Expand(6), 1e-5)
		}, false},
		{"softmax", [][]int{{3, 5}}, func(in []*Tensor) *Tensor { return in[0].Softmax() }, false},
		{"cross entropy", [][]int{{4, 5}}, func(in []*Tensor) *Tensor { return CrossEntropy(in[0], targets) }, false},
		{"mse", [][]int{{3, 2}, {3, 2}}, func(in []*Tensor) *Tensor { return MSE(in[0], in[1]) }, false},
		{"embedding", [][]int{{4, 3}}, func(in []*Tensor) *Tensor { return Embedding(in[0], ids) }, false},
		{"attention", [][]int{{2, 3, 2, 4}, {2, 5, 2, 4}, {2, 5, 2, 4}}, func(in []*Tensor) *Tensor { return Attention(in[0], in[1], in[2], false) }, false},
		{"attention causal", [][]int{{1, 3, 2, 4}, {1, 4, 2, 4}, {1, 4, 2, 4}}, func(in []*Tensor) *Tensor { return Attention(in[0], in[1], in[2], true) }, false},
		{"self attention", [][]int{{2, 4, 18}}, func(in []*Tensor) *Tensor { return SelfAttention(in[0], 2, true) }, false},
	}
}

// randomTensor draws an operand; see opCase.positive.
func randomTensor(rng *rand.Rand, positive bool, shape []int) *Tensor {
	data := make([]float32, numElems(shape))
	for i := range data {
		if positive {
			data[i] = 0.5 + 1.5*rng.Float32()
		} else {
			data[i] = 0.2 + 1.3*rng.Float32()
			if rng.IntN(2) == 0 {
				data[i] = -data[i]
			}
		}
	}
	return FromFloat32(data, shape...)
}

// evaluate runs fn on a fresh tape with the operands as leaves, and returns
// the scalar Σ fn(in)·weights.
func (c opCase) evaluate(tp *Tape, in []*Tensor, seed uint64) (*Tensor, []*Tensor) {
	leaves := make([]*Tensor, len(in))
	for i, t := range in {
		leaves[i] = tp.Watch(t, &collector{})
	}
	out := c.apply(leaves)
	weights := randomTensor(rand.New(rand.NewPCG(seed, 99)), false, out.shape)
	return out.Mul(weights).Sum(), leaves
}

// collector is a leaf that keeps its gradient.
type collector struct {
	grad  *Tensor
	shape []int
	holds bool
	ready int
}

func (c *collector) GradBuffer() (*Tensor, bool) {
	if c.grad == nil {
		c.grad = Zeros(c.shape...)
	}
	return c.grad, c.holds
}

func (c *collector) GradReady(context.Context) error { c.ready++; c.holds = true; return nil }

func TestGradientsAgreeWithFiniteDifferences(t *testing.T) {
	for i, c := range opCases() {
		t.Run(c.name, func(t *testing.T) {
			seed := uint64(i + 1)
			rng := rand.New(rand.NewPCG(seed, 0))
			in := make([]*Tensor, len(c.shapes))
			for j, s := range c.shapes {
				in[j] = randomTensor(rng, c.positive, s)
			}
			first := func() []*Tensor { return gradients(t, c, in, seed) }
			value := func() float64 {
				tp := NewTape(false)
				defer tp.Close()
				loss, _ := c.evaluate(tp, in, seed)
				return loss.Item()
			}
			analytic := first()
			for j := range in {
				compareNumeric(t, fmt.Sprintf("operand %d", j), in[j], analytic[j], value)
			}
			// Second order: the derivative of Σ grad·direction.
			directions := make([]*Tensor, len(in))
			for j, s := range c.shapes {
				directions[j] = randomTensor(rng, false, s)
			}
			slope := func() float64 {
				sum := 0.0
				for j, g := range first() {
					if g != nil {
						sum += g.Mul(directions[j]).Sum().Item()
					}
				}
				return sum
			}
			second := secondGradients(t, c, in, directions, seed)
			for j := range in {
				compareNumeric(t, fmt.Sprintf("second order, operand %d", j), in[j], second[j], slope)
			}
		})
	}
}

// gradients runs Backward into collectors.
func gradients(t *testing.T, c opCase, in []*Tensor, seed uint64) []*Tensor {
	t.Helper()
	tp := NewTape(true)
	defer tp.Close()
	leaves, sinks := make([]*Tensor, len(in)), make([]*collector, len(in))
	for i, x := range in {
		sinks[i] = &collector{shape: x.shape}
		leaves[i] = tp.Watch(x, sinks[i])
	}
	out := c.apply(leaves)
	weights := randomTensor(rand.New(rand.NewPCG(seed, 99)), false, out.shape)
	if err := out.Mul(weights).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	grads := make([]*Tensor, len(in))
	for i, s := range sinks {
		grads[i] = s.grad
		if s.ready > 1 {
			t.Errorf("operand %d was ready %d times in one backward pass", i, s.ready)
		}
	}
	return grads
}

func secondGradients(t *testing.T, c opCase, in, directions []*Tensor, seed uint64) []*Tensor {
	t.Helper()
	tp := NewTape(true)
	defer tp.Close()
	loss, leaves := c.evaluate(tp, in, seed)
	grads, err := loss.Grad(t.Context(), nil, leaves, CreateGraph())
	if err != nil {
		t.Fatal(err)
	}
	var sum *Tensor
	for i, g := range grads {
		if g == nil || !g.NeedsGrad() {
			continue
		}
		term := g.Mul(directions[i]).Sum()
		if sum == nil {
			sum = term
		} else {
			sum = sum.Add(term)
		}
	}
	out := make([]*Tensor, len(in))
	if sum == nil {
		return out
	}
	out, err = sum.Grad(t.Context(), nil, leaves)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range out {
		if g != nil {
			g.Keep()
		}
	}
	return out
}

// compareNumeric compares a gradient with central differences of value, a nil
// gradient being zero.
func compareNumeric(t *testing.T, what string, x, grad *Tensor, value func() float64) {
	t.Helper()
	const step = 1e-2
	got := make([]float32, x.NumElems())
	if grad != nil {
		got = grad.Float32s()
	}
	for i := range got {
		at := func(delta float32) float64 {
			x.WithFloat32s(func(d []float32) { d[i] += delta })
			v := value()
			x.WithFloat32s(func(d []float32) { d[i] -= delta })
			return v
		}
		want := (at(step) - at(-step)) / (2 * step)
		if diff := math.Abs(float64(got[i]) - want); diff > 4e-3*(1+math.Abs(want)) || math.IsNaN(diff) {
			t.Errorf("%s: gradient of element %d is %v, finite differences give %v", what, i, got[i], want)
			return
		}
	}
}
