// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// convOracle calls fn for every product of the definition, with the indices of
// its elements of x, w and y.
func convOracle(s Conv2dShape, fn func(x, w, y int)) {
	in, out := s.In/s.Groups, s.Out/s.Groups
	h, w := s.OutHeight(), s.OutWidth()
	for n := range s.Batch {
		for o := range s.Out {
			for i := range h {
				for j := range w {
					for c := range in {
						for p := range s.KernelH {
							for q := range s.KernelW {
								y, x := i*s.StrideH+p*s.DilationH-s.PadH, j*s.StrideW+q*s.DilationW-s.PadW
								if y < 0 || y >= s.Height || x < 0 || x >= s.Width {
									continue
								}
								fn(((n*s.In+o/out*in+c)*s.Height+y)*s.Width+x,
									((o*in+c)*s.KernelH+p)*s.KernelW+q,
									((n*s.Out+o)*h+i)*w+j)
							}
						}
					}
				}
			}
		}
	}
}

// square is a shape with equal sizes in both dimensions.
func squareConv(batch, in, size, out, kernel, stride, pad, dilation, groups int) Conv2dShape {
	return Conv2dShape{batch, in, size, size, out, kernel, kernel, stride, stride, pad, pad, dilation, dilation, groups}
}

func convShapes(r *rand.Rand) []Conv2dShape {
	shapes := []Conv2dShape{
		squareConv(1, 1, 1, 1, 1, 1, 0, 1, 1),
		squareConv(2, 3, 5, 4, 3, 1, 1, 1, 1),
		squareConv(4, 20, 7, 26, 3, 1, 1, 1, 1),     // tiles across images
		squareConv(4, 40, 7, 13, 1, 1, 0, 1, 1),     // a plain product
		squareConv(3, 5, 14, 70, 1, 2, 0, 1, 1),     // places that no tap reaches
		squareConv(2, 3, 30, 16, 7, 2, 3, 1, 1),     // the first layer of a ResNet
		squareConv(2, 8, 13, 12, 3, 2, 1, 1, 1),     // odd size, stride 2
		squareConv(2, 70, 6, 20, 3, 1, 1, 1, 1),     // k in blocks
		squareConv(2, 6, 12, 9, 3, 3, 2, 2, 3),      // grouped, dilated, stride 3
		squareConv(2, 8, 9, 8, 3, 1, 1, 1, 8),       // depthwise
		squareConv(2, 5, 10, 5, 3, 2, 1, 1, 5),      // depthwise, stride 2
		squareConv(1, 4, 3, 8, 5, 1, 2, 1, 2),       // a kernel larger than the image
		squareConv(5, 2, 2, 3, 2, 1, 1, 1, 1),       // tiny images
		squareConv(1, 2, 40, 2, 3, 1, 1, 1, 1),      // many columns
		squareConv(0, 2, 4, 3, 3, 1, 1, 1, 1),       // no image
		squareConv(2, 2, 4, 3, 1, 4, 0, 1, 1),       // a stride beyond the kernel
		squareConv(2, 3, 6, 5, 2, 1, 4, 3, 1),       // taps that read only padding
		squareConv(3, 16, 24, 7, 3, 1, 1, 1, 1),     // a long sum for the weight
		{2, 4, 5, 19, 6, 1, 3, 1, 2, 0, 1, 1, 1, 2}, // unequal
		{1, 3, 1, 33, 8, 1, 5, 1, 1, 0, 2, 1, 1, 1}, // one row
	}
	shapes = append(shapes,
		squareConv(4, 40, 7, 50, 3, 1, 1, 1, 1),  // by Winograd: few patches, odd size
		squareConv(2, 33, 12, 37, 3, 1, 1, 1, 1), // many patches
		squareConv(1, 64, 70, 32, 3, 1, 0, 1, 1), // wide rows, no padding
		squareConv(3, 32, 9, 100, 3, 1, 2, 1, 1), // more padding
		Conv2dShape{2, 32, 8, 21, 32, 3, 3, 1, 1, 3, 0, 1, 1, 1})
	more := 25
	if testing.Short() {
		more = 8
	}
	for range more {
		groups := []int{1, 1, 1, 2, 3}[r.IntN(5)]
		s := Conv2dShape{
			Batch: 1 + r.IntN(4), In: groups * (1 + r.IntN(9)), Height: 1 + r.IntN(20), Width: 1 + r.IntN(36),
			Out: groups * (1 + r.IntN(20)), KernelH: 1 + r.IntN(4), KernelW: 1 + r.IntN(4),
			StrideH: 1 + r.IntN(3), StrideW: 1 + r.IntN(3), PadH: r.IntN(3), PadW: r.IntN(3),
			DilationH: 1 + r.IntN(2), DilationW: 1 + r.IntN(2), Groups: groups,
		}
		if s.OutHeight() > 0 && s.OutWidth() > 0 {
			shapes = append(shapes, s)
		}
	}
	return shapes
}

func randomFloats(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func nans(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

func mustBeSame(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %v with one thread, %v with three", what, i, want[i], got[i])
		}
	}
}

// convCase is a convolution with its results by the definition.
type convCase struct {
	s                    Conv2dShape
	x, w, g, bias, start []float32 // start is what the weight's gradient is added to
	beta                 float32
	y, dx, dw            []float64
}

func newConvCase(r *rand.Rand, s Conv2dShape) *convCase {
	c := &convCase{s: s, x: randomFloats(r, s.inputElems()), w: randomFloats(r, s.weightElems()), g: randomFloats(r, s.outputElems())}
	if r.IntN(2) == 0 {
		c.bias = randomFloats(r, s.Out)
	}
	c.beta = []float32{0, 1, 0.5}[r.IntN(3)]
	c.start = nans(len(c.w))
	if c.beta != 0 {
		c.start = randomFloats(r, len(c.w))
	}
	c.y, c.dx, c.dw = make([]float64, len(c.g)), make([]float64, len(c.x)), make([]float64, len(c.w))
	convOracle(s, func(xi, wi, yi int) {
		c.y[yi] += float64(c.x[xi]) * float64(c.w[wi])
		c.dx[xi] += float64(c.g[yi]) * float64(c.w[wi])
		c.dw[wi] += float64(c.g[yi]) * float64(c.x[xi])
	})
	for i := range c.y {
		if c.bias != nil {
			c.y[i] += float64(c.bias[i/(s.OutHeight()*s.OutWidth())%s.Out])
		}
	}
	for i := range c.dw {
		if c.beta != 0 {
			c.dw[i] += float64(c.beta * c.start[i])
		}
	}
	return c
}

func (c *convCase) run(p *work.Pool) (y, dx, dw []float32) {
	y, dx, dw = nans(len(c.g)), nans(len(c.x)), append([]float32(nil), c.start...)
	Conv2d(p, c.s, y, c.x, c.w, c.bias)
	Conv2dBackwardInput(p, c.s, dx, c.g, c.w)
	Conv2dBackwardWeight(p, c.s, dw, c.g, c.x, c.beta)
	return y, dx, dw
}

func TestConv2d(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	r := rand.New(rand.NewPCG(3, 4))
	var cases []*convCase
	for _, s := range convShapes(r) {
		cases = append(cases, newConvCase(r, s))
	}
	forEachISA(t, func(t *testing.T) {
		for _, c := range cases {
			s := c.s
			name := fmt.Sprintf("%+v", s)
			y, dx, dw := c.run(nil)
			tol := 1e-6
			if s.winograd() {
				tol *= 2
			}
			sums := math.Sqrt(float64(1 + s.In*s.taps() + s.Out*s.taps()))
			mustBeNear(t, "y of "+name, y, c.y, tol*sums)
			mustBeNear(t, "dx of "+name, dx, c.dx, tol*sums)
			mustBeNear(t, fmt.Sprintf("dw (beta %g) of %s", c.beta, name), dw, c.dw, 2*tol*math.Sqrt(float64(1+s.Batch*s.OutHeight()*s.OutWidth())))
			y3, dx3, dw3 := c.run(p)
			mustBeSame(t, "y of "+name, y3, y)
			mustBeSame(t, "dx of "+name, dx3, dx)
			mustBeSame(t, "dw of "+name, dw3, dw)
		}
	})
}

func TestConv2dBackwardBias(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const batch, channels, plane = 3, 5, 77
	g, got := randomFloats(r, batch*channels*plane), nans(channels)
	want := make([]float64, channels)
	for i, v := range g {
		want[i/plane%channels] += float64(v)
	}
	Conv2dBackwardBias(nil, got, f32(g), batch, channels, plane, false)
	mustBeNear(t, "bias", got, want, 1e-6)
	for i := range want {
		want[i] *= 2
	}
	Conv2dBackwardBias(nil, got, f32(g), batch, channels, plane, true)
	mustBeNear(t, "accumulated bias", got, want, 1e-6)
	low := lowOrNot(true, g)
	Conv2dBackwardBias(nil, got, low, batch, channels, plane, false)
	clear(want)
	for i, v := range g {
		want[i/plane%channels] += float64(v)
	}
	mustBeNear(t, "bias of bfloat16", got, want, 1e-6)
}

// NaN of the input reaches every output that reads it, and no other.
func TestConv2dKeepsNaN(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		s := squareConv(1, 2, 9, 3, 3, 1, 1, 1, 1)
		r := rand.New(rand.NewPCG(7, 8))
		x, w, y := randomFloats(r, s.inputElems()), randomFloats(r, s.weightElems()), make([]float32, s.outputElems())
		bad := 4*9 + 4
		x[bad] = float32(math.NaN())
		Conv2d(nil, s, y, x, w, nil)
		want := make([]bool, len(y))
		convOracle(s, func(xi, _, yi int) { want[yi] = want[yi] || xi == bad })
		for i, v := range y {
			if (v != v) != want[i] {
				t.Fatalf("output %d is %v, NaN wanted: %t", i, v, want[i])
			}
		}
	})
}

// lowConvCase is a convolution of rounded operands: what they are, and the
// results by the definition.
type lowConvCase struct {
	s           Conv2dShape
	x, w, g     Mixed
	bias, start []float32 // start is what the weight's gradient is added to
	beta        float32
	y, dx, dw   []float64
}

func newLowConvCase(r *rand.Rand, s Conv2dShape) *lowConvCase {
	// Some operands are given as float32, which is then to be rounded.
	operand := func(n int) (Mixed, []float32) {
		wide := randomFloats(r, n)
		rounded := append([]float32(nil), wide...)
		low := lowOrNot(true, rounded)
		if r.IntN(3) == 0 {
			return f32(wide), rounded
		}
		return low, rounded
	}
	c := &lowConvCase{s: s, beta: float32(r.IntN(2))}
	var x, w, g []float32
	c.x, x = operand(s.inputElems())
	c.w, w = operand(s.weightElems())
	c.g, g = operand(s.outputElems())
	c.y, c.dx, c.dw = make([]float64, len(g)), make([]float64, len(x)), make([]float64, len(w))
	convOracle(s, func(xi, wi, yi int) {
		c.y[yi] += float64(x[xi]) * float64(w[wi])
		c.dx[xi] += float64(g[yi]) * float64(w[wi])
		c.dw[wi] += float64(g[yi]) * float64(x[xi])
	})
	if r.IntN(2) == 0 {
		c.bias = randomFloats(r, s.Out)
		for i := range c.y {
			c.y[i] += float64(c.bias[i/(s.OutHeight()*s.OutWidth())%s.Out])
		}
	}
	c.start = nans(len(w))
	if c.beta != 0 {
		c.start = randomFloats(r, len(w))
		for i := range c.dw {
			c.dw[i] += float64(c.start[i])
		}
	}
	return c
}

// run returns the results as float32, computed into that or into bfloat16.
func (c *lowConvCase) run(p *work.Pool, low bool) (y, dx, dw []float32) {
	toY, toDX := lowOrNot(low, nans(len(c.y))), lowOrNot(low, nans(len(c.dx)))
	dw = append([]float32(nil), c.start...)
	Conv2dBF16(p, c.s, toY, c.x, c.w, c.bias)
	Conv2dBackwardInputBF16(p, c.s, toDX, c.g, c.w)
	Conv2dBackwardWeightBF16(p, c.s, f32(dw), c.g, c.x, c.beta)
	return toY.floats(), toDX.floats(), dw
}

// Of bfloat16 the three products are those of the rounded operands, whichever of
// operands and results are float32, and with any number of threads.
func TestConv2dBF16(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	r := rand.New(rand.NewPCG(9, 10))
	var cases []*lowConvCase
	for _, s := range append(convShapes(r),
		squareConv(3, 10, 17, 14, 1, 1, 0, 1, 1),    // plain, a long sum for the weight
		squareConv(3, 20, 15, 40, 3, 2, 1, 1, 1),    // odd, too
		squareConv(2, 200, 9, 24, 3, 2, 1, 1, 1),    // k in blocks
		squareConv(1, 24, 6, 600, 3, 2, 1, 1, 1),    // and in the input's gradient, of every other element
		squareConv(2, 250, 7, 33, 3, 1, 1, 1, 1),    // k in blocks, tiles across images
		squareConv(1, 6, 20, 9, 9, 1, 2, 1, 1),      // a large kernel
		squareConv(1, 24, 12, 264, 3, 1, 1, 1, 2)) { // many channels in two groups
		cases = append(cases, newLowConvCase(r, s))
	}
	forEachBF16(t, func(t *testing.T) {
		for _, c := range cases {
			s := c.s
			sums := math.Sqrt(float64(1 + s.In*s.taps() + s.Out*s.taps()))
			for _, low := range []bool{false, true} {
				name := fmt.Sprintf("%+v, bfloat16 results %t", s, low)
				y, dx, dw := c.run(nil, low)
				tol := 2e-6 * sums
				if low {
					tol = 1.0 / 256
				}
				mustBeNear(t, "y of "+name, y, c.y, tol)
				mustBeNear(t, "dx of "+name, dx, c.dx, tol)
				mustBeNear(t, "dw of "+name, dw, c.dw, 4e-6*math.Sqrt(float64(1+s.Batch*s.OutHeight()*s.OutWidth())))
				y3, dx3, dw3 := c.run(p, low)
				mustBeSame(t, "y of "+name, y3, y)
				mustBeSame(t, "dx of "+name, dx3, dx)
				mustBeSame(t, "dw of "+name, dw3, dw)
			}
		}
	})
}

// A NaN or infinity of an image or a bias reaches the results that read it, and
// no other.
func TestConv2dBF16KeepsNaN(t *testing.T) {
	forEachBF16(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(11, 12))
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			s := squareConv(1, 3, 9, 4, 3, 2, 1, 1, 1)
			x, w, y := randomFloats(r, s.inputElems()), randomFloats(r, s.weightElems()), make([]float32, s.outputElems())
			bias := randomFloats(r, s.Out)
			at := 4*9 + 4
			x[at], bias[2] = bad, bad
			Conv2dBF16(nil, s, f32(y), lowOrNot(true, x), f32(w), bias)
			want := make([]bool, len(y))
			convOracle(s, func(xi, _, yi int) { want[yi] = want[yi] || xi == at || yi/(5*5) == 2 })
			for i, v := range y {
				if finite := v-v == 0; finite == want[i] {
					t.Fatalf("output %d is %v, finite wanted: %t", i, v, !want[i])
				}
			}
		}
	})
}

// The transforms cost no accuracy at the sizes of real networks: behind a ReLU
// and with He's weights, results are as near to float64 as plain sums in float32.
func TestWinogradIsAccurate(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for _, c := range []struct{ in, out, side int }{{64, 64, 28}, {256, 256, 14}, {512, 512, 7}} {
		s := squareConv(3, c.in, c.side, c.out, 3, 1, 1, 1, 1)
		x, w, y := randomFloats(r, s.inputElems()), randomFloats(r, s.weightElems()), nans(s.outputElems())
		for i := range x {
			x[i] = max(x[i], 0)
		}
		he := float32(math.Sqrt(2 / float64(9*c.in)))
		for i := range w {
			w[i] *= he
		}
		Conv2d(nil, s, y, x, w, nil)
		worst, plain, squares := 0.0, 0.0, 0.0
		const samples = 2000
		for range samples {
			image, o, i, j := r.IntN(s.Batch), r.IntN(c.out), r.IntN(c.side), r.IntN(c.side)
			want, single := 0.0, float32(0)
			for ch := range c.in {
				for tap := range 9 {
					u, v := i+tap/3-1, j+tap%3-1
					if min(u, v) < 0 || max(u, v) >= c.side {
						continue
					}
					a, b := x[((image*c.in+ch)*c.side+u)*c.side+v], w[(o*c.in+ch)*9+tap]
					want += float64(a) * float64(b)
					single += a * b
				}
			}
			got := y[((image*c.out+o)*c.side+i)*c.side+j]
			worst = max(worst, math.Abs(float64(got)-want))
			plain = max(plain, math.Abs(float64(single)-want))
			squares += want * want
		}
		rms := math.Sqrt(squares / samples)
		t.Logf("%d to %d channels: largest error %.1e of the root mean square, plain sums %.1e", c.in, c.out, worst/rms, plain/rms)
		if !(worst <= 4e-6*rms && worst <= 1.5*plain) {
			t.Errorf("%d to %d channels: the largest error is %.1e of the root mean square, %.1e of plain sums", c.in, c.out, worst/rms, plain/rms)
		}
	}
}
