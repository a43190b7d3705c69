// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// opCase is one row an operation: its value is checked against a naive oracle and
// against PyTorch's, its gradient against finite differences and PyTorch's, and
// the gradient of its gradient against finite differences.
type opCase struct {
	name   string // of the case in testdata/golden too
	shapes [][]int
	apply  func(in []*Tensor) *Tensor
	// naive is the definition in float64, on plain arrays.
	naive func(in []array) array
	// positive draws the operands from [0.5, 2], away from poles and kinks;
	// otherwise they come from ±[0.2, 1.5].
	positive bool
	// once says why there is no second derivative; PyTorch has none either then,
	// or it is a stated limit of the operation.
	once string
	// noGradient says why the gradient is no derivative: it is compared with
	// PyTorch's alone.
	noGradient string
	// golden is false for what PyTorch has no counterpart of; why says so.
	noGolden string
}

// areas are the tables of operations, one file each: NAME_cases_test.go, with
// PyTorch's values in testdata/golden/NAME.safetensors, which NAME.py wrote.
func areas(dev Device) map[string][]opCase {
	all := map[string][]opCase{}
	for area, cases := range tables {
		all[area] = cases(dev)
	}
	return all
}

// tables make the cases of an area with constants on a device.
var tables = map[string]func(dev Device) []opCase{
	"basic":       basicCases,
	"attention":   attentionCases,
	"conv":        convCases,
	"transformer": transformerCases,
	"norm":        normCases,
	"pool":        poolCases,
	"index":       indexCases,
	"groups":      groupCases,
	"join":        joinCases,
	"einsum":      einsumCases,
	"bag":         bagCases,
	"rnn":         rnnCases,
	"elementwise": elementwiseCases,
	"reductions":  reductionCases,
	"losses":      lossCases,
}

// array is an operand of a naive oracle: dense and row-major.
type array struct {
	shape []int
	data  []float64
}

func newArray(shape ...int) array { return array{shape, make([]float64, numElems(shape))} }

func (a array) at(index ...int) float64 { return a.data[a.position(index)] }

func (a array) set(v float64, index ...int) { a.data[a.position(index)] = v }

func (a array) position(index []int) int {
	at := 0
	for i, x := range index {
		at = at*a.shape[i] + x
	}
	return at
}

// each calls fn with every index of a shape, in order.
func each(shape []int, fn func(index []int)) {
	index := make([]int, len(shape))
	for range numElems(shape) {
		fn(index)
		for d := len(shape) - 1; d >= 0; d-- {
			index[d]++
			if index[d] < shape[d] {
				break
			}
			index[d] = 0
		}
	}
}

// mapArray applies fn to every element.
func mapArray(fn func(x float64) float64) func(in []array) array {
	return func(in []array) array {
		out := newArray(in[0].shape...)
		for i, x := range in[0].data {
			out.data[i] = fn(x)
		}
		return out
	}
}

// zipArrays applies fn to the elements of two operands, broadcast.
func zipArrays(fn func(x, y float64) float64) func(in []array) array {
	return func(in []array) array {
		shape, _ := broadcastShapes(in[0].shape, in[1].shape)
		out := newArray(shape...)
		pick := func(a array, index []int) float64 {
			own := slices.Clone(index[len(index)-len(a.shape):])
			for i, s := range a.shape {
				if s == 1 {
					own[i] = 0
				}
			}
			return a.at(own...)
		}
		each(shape, func(index []int) { out.set(fn(pick(in[0], index), pick(in[1], index)), index...) })
		return out
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
		leaves[i] = tp.Watch(t, &collector{shape: t.shape, dev: t.Device()})
	}
	out := c.apply(leaves)
	weights := randomTensor(rand.New(rand.NewPCG(seed, 99)), false, out.shape).ToDevice(out.Device())
	return out.Mul(weights).Sum(), leaves
}

// collector is a leaf that keeps its gradient.
type collector struct {
	grad  *Tensor
	shape []int
	dev   Device // nil is the CPU
	holds bool
	ready int
}

func (c *collector) GradBuffer() (*Tensor, bool) {
	if c.grad == nil {
		dev := c.dev
		if dev == nil {
			dev = CPU()
		}
		c.grad = New(dev, Float32, c.shape...)
	}
	return c.grad, c.holds
}

func (c *collector) GradReady(context.Context) error { c.ready++; c.holds = true; return nil }

// eachCase runs fn for every row of every area, with operands drawn for it.
func eachCase(t *testing.T, dev Device, fn func(t *testing.T, c opCase, in []*Tensor, seed uint64)) {
	for area, cases := range areas(dev) {
		for i, c := range cases {
			t.Run(area+"/"+c.name, func(t *testing.T) {
				seed := uint64(i + 1)
				rng := rand.New(rand.NewPCG(seed, 0))
				in := make([]*Tensor, len(c.shapes))
				for j, s := range c.shapes {
					in[j] = randomTensor(rng, c.positive, s).ToDevice(dev)
				}
				fn(t, c, in, seed)
			})
		}
	}
}

func TestValuesAgreeWithTheirDefinition(t *testing.T) {
	eachCase(t, CPU(), func(t *testing.T, c opCase, in []*Tensor, _ uint64) {
		if c.naive == nil {
			t.Fatal("the row has no naive oracle")
		}
		arrays := make([]array, len(in))
		for i, x := range in {
			arrays[i] = array{x.Shape(), widen(x.Float32s())}
		}
		got, want := c.apply(in), c.naive(arrays)
		if !slices.Equal(got.Shape(), want.shape) {
			t.Fatalf("shape %v, the definition gives %v", got.Shape(), want.shape)
		}
		compareValues(t, "value", got.Float32s(), want.data, 1e-5)
	})
}

func TestGradientsAgreeWithFiniteDifferences(t *testing.T) {
	eachCase(t, CPU(), func(t *testing.T, c opCase, in []*Tensor, seed uint64) {
		if c.noGradient != "" {
			return
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
		if c.once != "" {
			return
		}
		// Second order: the derivative of Σ grad·direction.
		rng := rand.New(rand.NewPCG(seed, 1))
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

// PyTorch's values and gradients for the same operands and the same gradient of
// the result, computed there in float64.
func TestValuesAndGradientsAgreeWithPyTorch(t *testing.T) {
	for area, cases := range areas(CPU()) {
		file := filepath.Join("testdata", "golden", area+".safetensors")
		golden, err := readGolden(file)
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, c := range cases {
			used[c.name] = true
			t.Run(area+"/"+c.name, func(t *testing.T) { c.compareWithPyTorch(t, golden, file) })
		}
		for key := range golden {
			if name, _, _ := strings.Cut(key, "/"); !used[name] {
				t.Errorf("%s has a case %q that the table lacks", file, name)
				used[name] = true
			}
		}
	}
}

func (c opCase) compareWithPyTorch(t *testing.T, golden map[string]*Tensor, file string) {
	if c.noGolden != "" {
		return
	}
	want := golden[c.name+"/out"]
	if want == nil {
		t.Fatalf("%s has no such case: add it to the script beside it and run that", file)
	}
	tp := NewTape(true)
	defer tp.Close()
	var leaves []*Tensor
	var sinks []*collector
	for i := range c.shapes {
		in := golden[fmt.Sprintf("%s/in%d", c.name, i)]
		if in == nil || !slices.Equal(in.Shape(), c.shapes[i]) {
			t.Fatalf("operand %d in %s is %v, the row has %v", i, file, in, c.shapes[i])
		}
		sinks = append(sinks, &collector{shape: in.shape})
		leaves = append(leaves, tp.Watch(in, sinks[i]))
	}
	out := c.apply(leaves)
	if !slices.Equal(out.Shape(), want.Shape()) {
		t.Fatalf("shape %v, PyTorch gives %v", out.Shape(), want.Shape())
	}
	compareValues(t, "value", out.Float32s(), widen(want.Float32s()), 1e-5)
	weights := golden[c.name+"/weights"]
	if weights == nil {
		return // PyTorch has no gradient
	}
	if err := out.Mul(weights).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, s := range sinks {
		want := golden[fmt.Sprintf("%s/grad%d", c.name, i)]
		if want == nil || s.grad == nil {
			if want != nil && slices.ContainsFunc(want.Float32s(), func(x float32) bool { return x != 0 }) || s.grad != nil && want == nil {
				t.Errorf("operand %d: gradient %v, PyTorch's is %v", i, s.grad, want)
			}
			continue
		}
		compareValues(t, fmt.Sprintf("gradient of operand %d", i), s.grad.Float32s(), widen(want.Float32s()), 1e-4)
	}
}

var goldenDTypes = map[safetensors.DType]DType{
	safetensors.F32: Float32, safetensors.BF16: BFloat16, safetensors.F16: Float16, safetensors.F64: Float64,
	safetensors.I64: Int64, safetensors.I32: Int32, safetensors.I8: Int8, safetensors.U8: Uint8, safetensors.Bool: Bool,
}

// readGolden reads a file of testdata/golden.
func readGolden(path string) (map[string]*Tensor, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]*Tensor{}
	for _, info := range f.Infos() {
		dtype := goldenDTypes[info.DType]
		if !dtype.Valid() {
			return nil, fmt.Errorf("%s: %s has dtype %v", path, info.Name, info.DType)
		}
		t := New(CPU(), dtype, info.Shape...)
		if err := f.ReadTensor(info.Name, t.host("read golden")); err != nil {
			return nil, err
		}
		out[info.Name] = t
	}
	return out, nil
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// compareValues holds got against want to a tolerance relative to the largest
// value, as rounding is.
func compareValues(t *testing.T, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	scale := 1.0
	for _, w := range want {
		if !math.IsInf(w, 0) && !math.IsNaN(w) {
			scale = max(scale, math.Abs(w))
		}
	}
	for i, w := range want {
		g := float64(got[i])
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		if d := math.Abs(g - w); !(d <= tolerance*scale) {
			t.Errorf("%s: element %d is %v, want %v", what, i, g, w)
			return
		}
	}
}

// gradients runs Backward into collectors.
func gradients(t *testing.T, c opCase, in []*Tensor, seed uint64) []*Tensor {
	t.Helper()
	tp := NewTape(true)
	defer tp.Close()
	leaves, sinks := make([]*Tensor, len(in)), make([]*collector, len(in))
	for i, x := range in {
		sinks[i] = &collector{shape: x.shape, dev: x.Device()}
		leaves[i] = tp.Watch(x, sinks[i])
	}
	out := c.apply(leaves)
	weights := randomTensor(rand.New(rand.NewPCG(seed, 99)), false, out.shape).ToDevice(out.Device())
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
