// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// mustFail runs fn and returns the *Error that it panics with.
func mustFail(t *testing.T, want string, fn func()) {
	t.Helper()
	defer func() {
		t.Helper()
		err, ok := recover().(*Error)
		if !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("panicked with %v, want an *Error that says %q", err, want)
		}
	}()
	fn()
	t.Errorf("did not panic, want an *Error that says %q", want)
}

func TestShapesThatDoNotFitPanicWithAllOfThem(t *testing.T) {
	a, b := Zeros(2, 3), Zeros(4, 5)
	a.SetName("h.0.weight")
	mustFail(t, "matmul(h.0.weight float32[2 3], float32[4 5]): the inner dims differ: 3 columns, 4 rows", func() { a.MatMul(b) })
	mustFail(t, "cannot be broadcast", func() { a.Add(b) })
	mustFail(t, "do not fill shape", func() { a.Reshape(4, 2) })
	mustFail(t, "not one of its 2 dims", func() { a.Sum(2) })
	mustFail(t, "is not defined on bool", func() { FromBool([]bool{true}).Neg() })
	mustFail(t, "not one of the table's 2 rows", func() { Embedding(a, FromInt64([]int64{0, 2})) })
	mustFail(t, "target 3 of row 1 is not one of the 3 classes", func() { CrossEntropy(a, FromInt64([]int64{0, 3})) })
	mustFail(t, "two devices", func() { a.Add(New(Meta, Float32, 2, 3)) })
	mustFail(t, "negative", func() { Zeros(-1) })
}

func TestReadingAFreedValuePanics(t *testing.T) {
	tp := NewTape(true)
	x := tp.Watch(Full(2, 3), &collector{shape: []int{3}})
	y := x.Mul(x)
	kept := y.Exp().Keep()
	loss := kept.Mul(y).Sum()
	if err := loss.Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustFail(t, "has been freed", func() { y.Float32s() })
	mustFail(t, "has been freed", func() { y.Add(y) })
	if loss.Item() == 0 || kept.Float32s()[0] == 0 {
		t.Error("the loss and a kept value must outlive Backward")
	}
	tp.Close()
	mustFail(t, "has been freed", func() { loss.Item() })
	if got := kept.Float32s()[0]; got < 54 || got > 55 {
		t.Errorf("the kept value is %v after Close, want e⁴", got)
	}
}

func TestWritingASavedValuePanicsInBackward(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	w := Full(1, 2)
	y := tp.Watch(Full(3, 2), &collector{shape: []int{2}}).Mul(w)
	w.Fill(5)
	mustFail(t, "was written to in place since", func() { _ = y.Sum().Backward(t.Context()) })
}

// A table may be stepped on between a bag's passes, as where several processes share
// it, unless the gradient is made of it.
func TestBagsOfATableThatChanges(t *testing.T) {
	for _, weighted := range []bool{false, true} {
		for _, mode := range []BagMode{BagSum, BagMean, BagMax} {
			if weighted && mode != BagSum {
				continue
			}
			tp := NewTape(true)
			table, grad := Full(1, 3, 2), &collector{shape: []int{3, 2}}
			o := EmbeddingBagOptions{Mode: mode}
			if weighted {
				o.PerSampleWeights = tp.Watch(Full(1, 1, 2), &collector{shape: []int{1, 2}})
			}
			y := EmbeddingBag(tp.Watch(table, grad), FromInt64([]int64{2, 0}, 1, 2), nil, o)
			table.Fill(5)
			if weighted {
				mustFail(t, "was written to in place since", func() { _ = y.Sum().Backward(t.Context()) })
			} else if err := y.Sum().Backward(t.Context()); err != nil {
				t.Errorf("mode %v: %v", mode, err)
			}
			tp.Close()
		}
	}
}

func TestSecondBackwardNeedsRetainGraph(t *testing.T) {
	for _, retain := range []bool{false, true} {
		tp := NewTape(true)
		sink := &collector{shape: []int{2}}
		loss := tp.Watch(Full(3, 2), sink).Exp().Sum()
		var opts []BackwardOption
		if retain {
			opts = append(opts, RetainGraph())
		}
		if err := loss.Backward(t.Context(), opts...); err != nil {
			t.Fatal(err)
		}
		if !retain {
			mustFail(t, "RetainGraph", func() { _ = loss.Backward(t.Context()) })
		} else {
			first := sink.grad.Float32s()[0]
			if err := loss.Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := sink.grad.Float32s()[0]; got != 2*first {
				t.Errorf("two passes gathered %v, want twice %v", got, first)
			}
		}
		tp.Close()
	}
}

// TestTwoLossesUnderOneTape: a pass consumes what its loss was computed from,
// not what merely came before.
func TestTwoLossesUnderOneTape(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	first, second := &collector{shape: []int{2}}, &collector{shape: []int{2}}
	lossOf := func(c *collector) *Tensor { x := tp.Watch(Full(3, 2), c); return x.Mul(x).Sum() }
	a, b := lossOf(first), lossOf(second)
	for _, loss := range []*Tensor{b, a} {
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*collector{first, second} {
		if got := c.grad.Float32s(); !slices.Equal(got, []float32{6, 6}) {
			t.Errorf("gradient %v, want [6 6]", got)
		}
	}
}

func TestTwoTapesDoNotMix(t *testing.T) {
	a, b := NewTape(true), NewTape(true)
	defer a.Close()
	defer b.Close()
	x, y := a.Const(Full(1, 2)), b.Const(Full(1, 2))
	mustFail(t, "two tapes", func() { x.Add(y) })
}

// failingLeaf fails when its gradient is ready, as a lost peer would make it.
type failingLeaf struct {
	collector
	err error
}

func (f *failingLeaf) GradReady(context.Context) error { return f.err }

func TestAnErrorOfALeafEndsBackward(t *testing.T) {
	want := errors.New("rank 1 died")
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(Full(1, 2), &failingLeaf{collector{shape: []int{2}}, want})
	if err := x.Sum().Backward(t.Context()); !errors.Is(err, want) {
		t.Errorf("Backward returned %v, want %v", err, want)
	}
}

func TestCancelEndsBackward(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	want := errors.New("stopped by the user")
	cancel(want)
	tp := NewTape(true)
	defer tp.Close()
	if err := tp.Watch(Full(1, 2), &collector{shape: []int{2}}).Sum().Backward(ctx); !errors.Is(err, want) {
		t.Errorf("Backward returned %v, want %v", err, want)
	}
}

func TestGradientsComeInReverseOrderOfUse(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	var order []string
	leaf := func(name string) *Tensor {
		return tp.Watch(Full(1, 2), &orderedLeaf{collector{shape: []int{2}}, name, &order})
	}
	x := leaf("first")
	x = x.Mul(leaf("second"))
	x = x.Add(leaf("third"))
	leaf("unused")
	tp.AfterBackward(func(context.Context) error { order = append(order, "after"); return nil })
	if err := x.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"third", "second", "first", "after"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

type orderedLeaf struct {
	collector
	name  string
	order *[]string
}

func (o *orderedLeaf) GradReady(context.Context) error {
	*o.order = append(*o.order, o.name)
	return nil
}

func TestRecordCarriesAForeignOperation(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(Full(3, 2), sink)
	y := Record("triple", x.Detach().MulScalar(3), []*Tensor{x}, nil, func(_ context.Context, g *Tensor) ([]*Tensor, error) {
		return []*Tensor{g.MulScalar(3)}, nil
	})
	if err := y.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sink.grad.Float32s(); !slices.Equal(got, []float32{3, 3}) {
		t.Errorf("gradient %v, want [3 3]", got)
	}
}

// TestRecordOfAValueWithoutTape: what a collective filled may have been made
// under no tape; its history must not be lost for that.
func TestRecordOfAValueWithoutTape(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	x := tp.Watch(Full(3, 2), sink)
	y := Record("gather", Full(7, 2), []*Tensor{x}, nil, func(_ context.Context, g *Tensor) ([]*Tensor, error) {
		return []*Tensor{g.MulScalar(5)}, nil
	})
	if err := y.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sink.grad.Float32s(); !slices.Equal(got, []float32{5, 5}) {
		t.Errorf("gradient %v, want [5 5]", got)
	}
}

// TestGradOfAValueAndWhatItWasMadeFrom asks for both ends of a chain at once.
func TestGradOfAValueAndWhatItWasMadeFrom(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(Full(2, 1), &collector{shape: []int{1}})
	y := x.Mul(x)
	got, err := y.Mul(y).Sum().Grad(t.Context(), nil, []*Tensor{y, x}) // x⁴
	if err != nil {
		t.Fatal(err)
	}
	if got[1] == nil || got[0].Item() != 8 || got[1].Item() != 32 {
		t.Errorf("gradients %v, want [8] of y and [32] of x", got)
	}
	mustFail(t, "shape and dtype", func() { _, _ = y.Grad(t.Context(), FromInt64([]int64{1}), []*Tensor{x}) })
}

func TestKeptValueUnderAnotherTape(t *testing.T) {
	first := NewTape(true)
	kept := first.Watch(Full(2, 1), &collector{shape: []int{1}}).MulScalar(3).Keep()
	first.Close()
	mustFail(t, "its tape has been closed", func() { _ = kept.Backward(t.Context()) })
	second := NewTape(true)
	defer second.Close()
	if got := second.Const(kept).Add(second.Const(Full(1, 1))).Item(); got != 7 {
		t.Errorf("6 + 1 = %v", got)
	}
}

// TestSteadyStepTakesNoMemory runs steps of one shape and looks at what the
// pool took from the system.
func TestSteadyStepTakesNoMemory(t *testing.T) {
	sink := &collector{shape: []int{64, 64}}
	w := Full(0.01, 64, 64)
	step := func() {
		tp := NewTape(true)
		defer tp.Close()
		sink.holds = false
		x := tp.Const(Full(1, 32, 64))
		x.Keep()
		h := Linear(x, tp.Watch(w, sink), nil)
		for range 4 {
			h = h.GELU().Add(h).Softmax(-1)
		}
		if err := h.Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stats := func() int64 {
		return theCPU().MemoryStats().Reserved
	}
	for range 5 {
		step()
	}
	before := stats()
	for range 200 {
		step()
	}
	if after := stats(); after != before {
		t.Errorf("200 equal steps took %d bytes from the system", after-before)
	}
}

// TestForgottenValuesAreCollected makes garbage without a tape: the collector
// has to hear of it.
func TestForgottenValuesAreCollected(t *testing.T) {
	const size, rounds = 1 << 20, 1000 // 4 GiB in all
	for range rounds {
		Zeros(size)
	}
	runtime.GC()
	if got := theCPU().MemoryStats().Reserved; got > 1<<30 {
		t.Errorf("%d MiB are reserved after making %d MiB of garbage", got>>20, 4*size*rounds>>20)
	}
}

func TestMetaComputesShapesOnly(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(New(Meta, Float32, 1<<20, 1<<20), &collector{})
	w := tp.Const(New(Meta, Float32, 512, 1<<20))
	y := Linear(x, w, nil).GELU().T()
	if got := y.Shape(); !slices.Equal(got, []int{512, 1 << 20}) {
		t.Errorf("shape %v, want [512 %d]", got, 1<<20)
	}
	mustFail(t, "has no data on device meta", func() { y.Contiguous().Float32s() })
}

// A seed that was computed under the tape stays as it was: gradients are not
// added up in its memory.
func TestGradLeavesItsSeedAlone(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	x := tp.Watch(Full(2, 3), &collector{shape: []int{3}}).MulScalar(1)
	seed := tp.Const(Full(1, 3)).MulScalar(1)
	y := x.Sub(x.MulScalar(3))
	for range 2 {
		grads, err := y.Grad(t.Context(), seed, []*Tensor{x})
		if err != nil || grads[0].Float32s()[0] != -2 || seed.Float32s()[0] != 1 {
			t.Fatalf("gradient %v of seed %v, want -2 of 1; error %v", grads[0], seed, err)
		}
	}
}

// TestGradOfAnInput: Leaf is what a gradient can be asked for, and cuts what was
// before it.
func TestGradOfAnInput(t *testing.T) {
	tp := NewTape(true)
	defer tp.Close()
	sink := &collector{shape: []int{2}}
	before := tp.Watch(counting(2), sink).MulScalar(3)
	x := tp.Leaf(before)
	loss := x.Square().Sum()
	grads, err := loss.Grad(t.Context(), nil, []*Tensor{x, before})
	if err != nil {
		t.Fatal(err)
	}
	if got := grads[0].Float32s(); !slices.Equal(got, []float32{0, 6}) || grads[1] != nil {
		t.Errorf("got %v and %v, want [0 6] and none", grads[0], grads[1])
	}
	seen := false
	x.OnGrad(func(g *Tensor) *Tensor { seen = true; return g })
	if err := loss.Backward(t.Context()); err != nil || !seen || sink.grad != nil {
		t.Errorf("error %v, seen %v, before the leaf %v", err, seen, sink.grad)
	}
	if y := NewTape(false).Leaf(counting(2)); y.NeedsGrad() {
		t.Error("a tape that does not record has a leaf")
	}
	mustFail(t, "wants a floating dtype", func() { tp.Leaf(FromInt64([]int64{1})) })
}

// TestNoGradient: the message says where the path to a leaf was lost.
func TestNoGradient(t *testing.T) {
	tp, off := NewTape(true), NewTape(false)
	defer tp.Close()
	defer off.Close()
	x := tp.Leaf(counting(2))
	loss := x.Square().Sum()
	grad := func(loss, wrt *Tensor) *Tensor {
		grads, err := loss.Grad(t.Context(), nil, []*Tensor{wrt})
		if err != nil {
			t.Fatal(err)
		}
		return grads[0]
	}
	mustFail(t, "under no tape", func() { _ = counting(1).Backward(t.Context()) })
	mustFail(t, "not of nn.Evaluation", func() { _ = off.Leaf(counting(1)).Sum().Backward(t.Context()) })
	mustFail(t, "with CreateGraph", func() { _ = grad(loss, x).Sum().Backward(t.Context()) })
	mustFail(t, "value 0 has no gradient", func() { grad(loss, counting(2)) })
	mustFail(t, "bring it there by Tape.Leaf", func() { grad(loss, tp.Const(counting(2))) })
}

// What is made under a closed tape is not lost to the process: the collector
// has it.
func TestValuesUnderAClosedTapeAreTheCollectors(t *testing.T) {
	tp := NewTape(false)
	x := tp.Const(counting(3))
	tp.Close()
	y := x.AddScalar(1)
	if got := tp.LiveBytes(); got != 0 {
		t.Errorf("the closed tape holds %d bytes", got)
	}
	if !slices.Equal(y.Float32s(), []float32{1, 2, 3}) {
		t.Errorf("got %v", y)
	}
}

// TestPassesThatKeepTheGraphKeepNothingElse: what a pass of RetainGraph or Grad
// makes on its way is freed on the way, with and without parts that are recomputed.
func TestPassesThatKeepTheGraphKeepNothingElse(t *testing.T) {
	const size, layers = 1 << 10, 50
	for _, recompute := range []bool{false, true} {
		tp := NewTape(true)
		sink := &collector{shape: []int{size}}
		x := tp.Watch(Full(0.5, size), sink)
		most := int64(0)
		layer := func(h *Tensor) *Tensor {
			y := h.GELU().Mul(h).AddScalar(0.1)
			y.OnGrad(func(*Tensor) *Tensor { most = max(most, tp.LiveBytes()); return nil })
			return y
		}
		h := x
		for range layers {
			if recompute {
				h = tp.Recompute([]*Tensor{h}, func(in []*Tensor) []*Tensor { return []*Tensor{layer(layer(in[0]))} })[0]
			} else {
				h = layer(h)
			}
		}
		loss := h.Sum()
		forward := tp.LiveBytes()
		want := []float32(nil)
		for pass := range 6 {
			results := int64(0)
			if pass%2 == 0 {
				if err := loss.Backward(t.Context(), RetainGraph()); err != nil {
					t.Fatal(err)
				}
			} else {
				grads, err := loss.Grad(t.Context(), nil, []*Tensor{x})
				if err != nil {
					t.Fatal(err)
				}
				sink.grad.CopyFrom(grads[0])
				results = 4 * size
				forward += results
			}
			if got := sink.grad.Float32s(); want == nil {
				want = got
			} else if !slices.Equal(got, want) {
				t.Errorf("pass %d: gradient %v, the first was %v", pass, got[0], want[0])
			}
			sink.holds = false
			if got := tp.LiveBytes(); got != forward {
				t.Errorf("recompute %v: pass %d left %d bytes more", recompute, pass, got-forward)
			}
			if limit := forward + 20*4*size; most > limit {
				t.Errorf("recompute %v: pass %d had %d bytes, want at most %d", recompute, pass, most, limit)
			}
		}
		if n := len(tp.scope.live); n > 10*layers {
			t.Errorf("the tape lists %d values", n)
		}
		tp.Close()
	}
}
