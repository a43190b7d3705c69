// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/cohort-ml/cohort/internal/device/lazy"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// newLazy returns a device that computes later, for a test.
func newLazy(t *testing.T) *lazy.Device {
	d := lazy.New(2)
	t.Cleanup(d.Close)
	return d
}

// TestOperationsOnALateDevice: every operation of the tables, its gradient and the
// gradient of that have the bits of the CPU on a device that runs later, and read
// nothing on the way, but for those whose result's shape depends on the data.
func TestOperationsOnALateDevice(t *testing.T) {
	// How many elements the result of these has depends on the data.
	reads := []string{"masked select", "masked select broadcast", "masked scatter", "repeat interleave by"}
	for area, cases := range areas(CPU()) {
		late := newLazy(t)
		var onLate []opCase
		late.Allow(func() { onLate = areas(late)[area] })
		for i, c := range cases {
			t.Run(area+"/"+c.name, func(t *testing.T) {
				defer func() {
					if v := recover(); v != nil {
						t.Error(v)
					}
				}()
				in := c.operands(uint64(i + 1))
				want := c.everything(t, in, uint64(i+1))
				moved := make([]*Tensor, len(in))
				for j, x := range in {
					moved[j] = x.ToDevice(late)
				}
				before := late.NumReads()
				var got []*Tensor
				run := func() { got = onLate[i].everything(t, moved, uint64(i+1)) }
				if slices.Contains(reads, c.name) {
					late.Allow(run)
				} else {
					run()
				}
				if n := late.NumReads() - before; n > 0 && !slices.Contains(reads, c.name) {
					t.Errorf("the operation read %d times", n)
				}
				late.Allow(func() {
					for j, w := range want {
						if (w == nil) != (got[j] == nil) {
							t.Fatalf("result %d is %v, the CPU's %v", j, got[j], w)
						}
						if w != nil && !sameBits(w.Float32s(), got[j].Float32s()) {
							t.Errorf("result %d is %v, the CPU's %v", j, got[j].Float32s(), w.Float32s())
						}
					}
				})
			})
		}
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

// operands draws those of a case, on the CPU.
func (c opCase) operands(seed uint64) []*Tensor {
	rng := rand.New(rand.NewPCG(seed, 0))
	in := make([]*Tensor, len(c.shapes))
	for j, s := range c.shapes {
		in[j] = randomTensor(rng, c.positive, s)
	}
	return in
}

// everything returns the value of a case, its gradients and, where it has some, the
// gradients of the gradients.
func (c opCase) everything(t *testing.T, in []*Tensor, seed uint64) []*Tensor {
	all := append([]*Tensor{c.apply(in)}, gradients(t, c, in, seed)...)
	if c.once != "" || c.noGradient != "" {
		return all
	}
	directions := make([]*Tensor, len(in))
	rng := rand.New(rand.NewPCG(seed, 1))
	for j, s := range c.shapes {
		directions[j] = randomTensor(rng, false, s).ToDevice(in[j].Device())
	}
	return append(all, secondGradients(t, c, in, directions, seed)...)
}

// TestLateFaults: what a kernel of a late device notes is reported by the next read,
// the end of Backward, or Synchronize, with the operation, the element and the line
// of the call; then the device goes on.
func TestLateFaults(t *testing.T) {
	late := newLazy(t)
	on := On(late)
	table := on.Full(1, 5, 2)
	bad := on.FromInt64([]int64{1, 7, 9})
	for what, c := range map[string]struct {
		run  func() *Tensor
		says string
	}{
		"embedding":     {func() *Tensor { return Embedding(table, bad) }, "id 7 at position 1 is not one of the table's 5 rows"},
		"index select":  {func() *Tensor { return table.IndexSelect(0, bad) }, "index 7 at position [1] is out of range: dim 0 has 5 elements"},
		"cross entropy": {func() *Tensor { return CrossEntropy(on.Zeros(3, 5), bad) }, "target 7 of row 1 is not one of the 5 classes"},
		"one hot":       {func() *Tensor { return OneHot(bad, 5).To(Float32) }, "id 7 at position [1] is not one of the 5 classes"},
		"bce":           {func() *Tensor { return BCE(on.Full(1.5, 2), on.Zeros(2)) }, "element 0 is 1.5, no probability"},
		"embedding bag": {func() *Tensor { return EmbeddingBag(table, bad, on.FromInt64([]int64{0}), EmbeddingBagOptions{}) }, "index 7 at position [1]"},
		"offsets": {func() *Tensor {
			return EmbeddingBag(table, on.FromInt64([]int64{1, 2}), on.FromInt64([]int64{0, 3}), EmbeddingBagOptions{})
		}, "offset 3 at position 1"},
	} {
		t.Run(what, func(t *testing.T) {
			here := "lazy_test.go:"
			value := c.run().Sum()
			late.Allow(func() {
				mustFail(t, c.says, func() { value.Item() })
				if got := on.Full(2).Item(); got != 2 {
					t.Errorf("after the fault a value is %v, want 2", got)
				}
			})
			c.run()
			err := Synchronize(late)
			if e, ok := err.(*Error); !ok || !strings.Contains(err.Error(), c.says) || !strings.Contains(e.Where, here) {
				t.Errorf("Synchronize returned %v", err)
			}
			if err := Synchronize(late); err != nil {
				t.Errorf("the fault is still there: %v", err)
			}
		})
	}
	t.Run("backward", func(t *testing.T) {
		tp := NewTape(true)
		defer tp.Close()
		loss := Embedding(tp.Watch(table, &collector{shape: table.shape, dev: late}), tp.Const(bad)).Sum()
		late.Run()
		if err := loss.Backward(t.Context()); err == nil || !strings.Contains(err.Error(), "id 7 at position 1") {
			t.Errorf("Backward returned %v", err)
		}
	})
	if err := Synchronize(CPU()); err != nil {
		t.Errorf("the CPU has a fault: %v", err)
	}
}

// TestFaultsKeepNoMemory: what a late device may have to say of a call does not keep
// the call's operands.
func TestFaultsKeepNoMemory(t *testing.T) {
	late := newLazy(t)
	on := On(late)
	table, logits := on.Full(1, 5, 2), on.Zeros(2, 5)
	for what, call := range map[string]func(ids *Tensor){
		"embedding":     func(ids *Tensor) { Embedding(table, ids) },
		"index select":  func(ids *Tensor) { table.IndexSelect(0, ids) },
		"one hot":       func(ids *Tensor) { OneHot(ids, 5) },
		"cross entropy": func(ids *Tensor) { CrossEntropy(logits, ids) },
		"bag":           func(ids *Tensor) { EmbeddingBag(table, ids, ids.MulScalar(0), EmbeddingBagOptions{}) },
		"bce":           func(ids *Tensor) { x := ids.To(Float32).MulScalar(0.1); BCE(x, x) },
		"rows": func(ids *Tensor) {
			SGDRows(table, nil, RowGrad{IDs: ids, Rows: on.Zeros(2, 2), NumRows: 5}, SGDScalars{LR: 1}, nil)
		},
	} {
		kept := func() weak.Pointer[storage] {
			ids := on.FromInt64([]int64{1, 2})
			call(ids)
			return weak.Make(ids.storage)
		}()
		if err := Synchronize(late); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		deadline := time.Now().Add(loaded.Allow(10 * time.Second))
		for runtime.GC(); kept.Value() != nil; runtime.GC() {
			if time.Now().After(deadline) {
				t.Errorf("%s keeps its indices", what)
				break
			}
		}
	}
}

// TestAxpyOfZero: no factor hides what is not finite. Losses and norms spoil the scale
// of a step so.
func TestAxpyOfZero(t *testing.T) {
	late := newLazy(t)
	for _, dev := range []Device{CPU(), late} {
		for _, dtype := range []DType{Float32, Float64, BFloat16, Float16} {
			for _, v := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), 3} {
				scale, x := On(dev).Full(1, 2).To(dtype), On(dev).Full(v, 2).To(dtype)
				scale.Axpy(0, x)
				late.Allow(func() {
					for _, got := range scale.Float32s() {
						if finite := v == 3; finite && got != 1 || !finite && got == got {
							t.Errorf("%v on %s: 1 + 0·%v is %v", dtype, dev.Name(), v, got)
						}
					}
				})
			}
		}
	}
}

// TestReleaseOnALateDevice: memory is given up when what was called before has been
// done, and a backward pass finds what Restore has brought back.
func TestReleaseOnALateDevice(t *testing.T) {
	late := newLazy(t)
	tape := NewTape(true)
	defer tape.Close()
	w := On(late).Full(3, 4)
	x := tape.Leaf(On(late).Full(2, 4))
	y := x.Mul(tape.Const(w)).Sum()
	w.Release()
	On(late).Full(9, 4) // would lie where w lay
	if err := w.Restore(func(into *Tensor) error { into.Fill(3); return nil }); err != nil {
		t.Fatal(err)
	}
	grads, err := y.Grad(t.Context(), nil, []*Tensor{x})
	if err != nil {
		t.Fatal(err)
	}
	w.Release()
	late.Allow(func() {
		if y.Item() != 24 || !slices.Equal(grads[0].Float32s(), []float32{3, 3, 3, 3}) {
			t.Errorf("the sum is %v, the gradient %v", y, grads[0])
		}
	})
}

// TestTwoTapesOnALateDevice: goroutines with a tape each may share a device.
func TestTwoTapesOnALateDevice(t *testing.T) {
	late := newLazy(t)
	train := func(dev Device, seed int64) *Tensor {
		on := On(dev)
		w, g := on.Empty(Float32, 6, 6), NewGenerator(seed)
		g.Uniform(w, -1, 1)
		for range 20 {
			tape := NewTape(true)
			leaf := &collector{shape: w.shape, dev: dev}
			x := on.Empty(Float32, 4, 6)
			g.Uniform(x, -1, 1)
			loss := Embedding(tape.Watch(w, leaf), tape.Const(on.FromInt64([]int64{1, 5, 1, seed % 6}))).Mul(tape.Const(x)).Square().Mean()
			if err := loss.Backward(t.Context()); err != nil {
				t.Error(err)
			}
			SGD([]SGDUpdate{{Param: w, Grad: leaf.grad, SGDScalars: SGDScalars{LR: 0.1}}}, nil)
			tape.Close()
		}
		return w
	}
	var got [4]*Tensor
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = train(late, int64(i)) })
	}
	wg.Wait()
	late.Allow(func() {
		for i, w := range got {
			if want := train(CPU(), int64(i)); !sameBits(want.Float32s(), w.Float32s()) {
				t.Errorf("goroutine %d has %v, on the CPU %v", i, w, want)
			}
		}
	})
}

// TestLateRead: a read that is not allowed panics with the operation before it and
// the line that reads.
func TestLateRead(t *testing.T) {
	late := newLazy(t)
	x := On(late).Full(3, 2).Exp()
	defer func() {
		if v := fmt.Sprint(recover()); !strings.Contains(v, "the latest call was") || !strings.Contains(v, "lazy_test.go:") {
			t.Errorf("the read panicked with %q", v)
		}
		late.Allow(func() {
			if got := x.Float32s()[0]; math.Abs(float64(got)-math.Exp(3)) > 1e-4 {
				t.Errorf("the value is %v", got)
			}
		})
	}()
	x.Float32s()
}
