// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// writer makes the same calls on tensors of any device.
type writer struct {
	dev device.Device
	g   *Generator
	ts  []*Tensor
}

// write makes tensors and writes them by calls that pick draws.
func (w *writer) write(pick *rand.Rand) {
	shapes := [][]int{{7, 5}, {1}, {12}, {3, 4, 5}, {}, {40, 33}, {7, 5}}
	for i, shape := range shapes {
		switch i % 3 {
		case 0:
			w.ts = append(w.ts, New(w.dev, Float32, shape...))
		case 1:
			w.ts = append(w.ts, On(w.dev).Full(float64(i), shape...))
		default:
			t := On(w.dev).Empty(Float32, shape...)
			w.g.Uniform(t, -1, 1)
			w.ts = append(w.ts, t)
		}
	}
	for range 40 {
		t := w.ts[pick.IntN(len(w.ts))]
		part := t
		if len(t.shape) > 0 && pick.IntN(2) == 0 {
			dim := pick.IntN(len(t.shape))
			start := pick.IntN(t.shape[dim])
			part = t.Narrow(dim, start, 1+pick.IntN(t.shape[dim]-start))
		}
		if len(part.shape) == 2 && pick.IntN(4) == 0 {
			part = part.T()
		}
		op := pick.IntN(8)
		if op > 0 && !part.IsContiguous() {
			part = t
		}
		switch op {
		case 0:
			part.Fill(float64(pick.IntN(9)))
		case 1:
			w.g.Uniform(part, -0.3, 0.7)
		case 2:
			w.g.Normal(part, 0.1, 2)
		case 3:
			part.Scale(0.37)
		case 4:
			w.ts[0].CopyFrom(w.ts[6])
		case 5:
			w.ts[6].CopyScaled(1.3, w.ts[0])
		case 6:
			w.ts[6].Axpy(0.3, w.ts[0].Clone())
		case 7:
			w.ts[3].Select(0, 1).CopyFrom(w.ts[5].Narrow(0, 0, 1).Reshape(33).Narrow(0, 3, 20).Reshape(4, 5))
			w.g.Perm(pick.IntN(5))
		}
	}
	rows := [][]float32{{1, 2}, {3, 4}, {5, 6}}
	cos, sin := RoPETable(w.dev, []float64{1, 0.5, 0.1}, 2, 5)
	w.ts = append(w.ts, w.ts[5].To(BFloat16), On(w.dev).FromInt64([]int64{1 << 60, -1}, 2, 1), On(w.dev).FromFloat32(slices.Concat(rows...), 3, 2),
		ArangeOf(w.dev, Int32, 3, 20, 2), Eye(w.dev, 4, 6), cos, sin, Linspace(w.dev, 0, 1, 9), New(w.dev, Int64))
}

// split returns the parts of t for ranks along a dim, by the rule of PyTorch's chunk.
func split(t *Tensor, dim, ranks int) []*Tensor {
	if len(t.shape) == 0 {
		return []*Tensor{t}
	}
	dim %= len(t.shape)
	var parts []*Tensor
	c := (t.shape[dim] + ranks - 1) / ranks
	for r := range ranks {
		start := min(r*c, t.shape[dim])
		parts = append(parts, t.Narrow(dim, start, min(c, t.shape[dim]-start)))
	}
	return parts
}

// TestMaterialize: what memory of Meta remembers gives the bits that the calls give on
// the CPU, for whole tensors and for the parts of any number of ranks along any dim,
// and the generator goes on as if it had drawn.
func TestMaterialize(t *testing.T) {
	seed := seeded.Of(t)
	late := newLazy(t)
	for n := range uint64(40) {
		want := writer{dev: CPU(), g: NewGenerator(int64(n))}
		want.write(rand.New(rand.NewPCG(seed, n)))
		meta := writer{dev: Meta, g: NewGenerator(int64(n))}
		meta.write(rand.New(rand.NewPCG(seed, n)))
		for ranks := 1; ranks <= 5; ranks++ {
			for dim := range 3 {
				for rank := range ranks {
					var into, from, values []*Tensor
					for i, m := range meta.ts {
						parts := split(m, dim, ranks)
						if rank >= len(parts) {
							continue
						}
						dev := CPU()
						if n%8 == 0 && rank == 1 {
							dev = late
						}
						from = append(from, parts[rank])
						into = append(into, On(dev).Empty(m.dtype, parts[rank].shape...))
						values = append(values, split(want.ts[i], dim, ranks)[rank])
					}
					if err := Materialize(into, from); err != nil {
						t.Fatal(err)
					}
					for i := range into {
						var got *Tensor
						late.Allow(func() { got = into[i].ToDevice(CPU()) })
						ok := values[i].Contiguous()
						if got.NumElems() > 0 && !bytes.Equal(got.Buffer().Data, ok.Buffer().Data) {
							t.Fatalf("program %d, rank %d of %d along dim %d, tensor %d: %v, want %v", n, rank, ranks, dim, i, got, ok)
						}
					}
				}
			}
		}
		if !bytes.Equal(meta.g.State(), want.g.State()) {
			t.Fatalf("program %d: the generator is elsewhere than after the same calls on the CPU", n)
		}
	}
}

// TestMaterializeInChunks: values larger than a chunk, with a copy of one drawn before.
func TestMaterializeInChunks(t *testing.T) {
	make := func(dev Device) []*Tensor {
		g := NewGenerator(3)
		a, b := New(dev, Float32, 700, 1000), New(dev, Float32, 3, materializeChunk)
		g.Uniform(a, -1, 1)
		g.Uniform(b, 0, 2)
		tied := a.Clone()
		tied.Scale(0.5)
		return []*Tensor{a, b, tied}
	}
	want, meta := make(CPU()), make(Meta)
	for dim := range 2 {
		for rank := range 3 {
			var into, from []*Tensor
			for _, m := range meta {
				part := split(m, dim, 3)[rank]
				from, into = append(from, part), append(into, Empty(Float32, part.shape...))
			}
			before := theCPU().MemoryStats()
			if err := Materialize(into, from); err != nil {
				t.Fatal(err)
			}
			if more := theCPU().MemoryStats().Peak - max(before.Peak, before.InUse+2*4*materializeChunk); more > 0 {
				t.Errorf("%d bytes more than two chunks beside the values", more)
			}
			for i := range into {
				if !slices.Equal(into[i].Float32s(), split(want[i], dim, 3)[rank].Float32s()) {
					t.Errorf("tensor %d of rank %d along dim %d differs", i, rank, dim)
				}
			}
		}
	}
}

// TestOrigin: equal texts stand for the same values.
func TestOrigin(t *testing.T) {
	seed := seeded.Of(t)
	all := func(g *Generator) (texts []string) {
		w := writer{dev: Meta, g: g}
		w.write(rand.New(rand.NewPCG(seed, 0)))
		for _, m := range w.ts {
			texts = append(texts, m.Origin(), m.Reshape(m.NumElems()).Narrow(0, 0, 1).Origin())
		}
		return texts
	}
	a, b, other := all(NewGenerator(1)), all(NewGenerator(1)), all(NewGenerator(2))
	if !slices.Equal(a, b) || slices.Contains(a, "") {
		t.Errorf("the same calls have the origins\n%v\n%v", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	for _, i := range []int{0, 3, 12} {
		t.Log(a[i])
	}
	if slices.Equal(a, other) {
		t.Error("draws of another seed have the same origins")
	}
	if text := Zeros(3).Origin() + On(Meta).Full(1, 2).Add(On(Meta).Full(1, 2)).Origin(); text != "" {
		t.Errorf("the origin of values that are there, or that nobody remembers, is %q", text)
	}
}

// TestMaterializeUnknown: what nobody remembers is an error that names the tensor and
// what wrote it, until all of it is written again.
func TestMaterializeUnknown(t *testing.T) {
	ones := On(Meta).Full(1, 4)
	for what, write := range map[string]func(x *Tensor){
		"copy from":    func(x *Tensor) { x.CopyFrom(ones.Add(ones)) },
		"axpy":         func(x *Tensor) { x.Axpy(1, ones.Mul(ones)) },
		"mark written": (*Tensor).MarkWritten,
		"to":           func(x *Tensor) { *x = *ones.Add(ones).To(BFloat16) },
		"has computed": func(x *Tensor) { *x = *ones.Add(ones) },
		"4096 calls":   func(x *Tensor) { repeat(5000, func() { x.Scale(0.5) }) },
		"written them": func(x *Tensor) {
			x.Narrow(0, 1, 2).CopyFrom(ones.Narrow(0, 0, 2).Add(ones.Narrow(0, 1, 2)))
			x.Scale(2)
		},
	} {
		x := New(Meta, Float32, 4)
		if write != nil {
			write(x)
			x.SetName("h.0.weight")
			err := Materialize([]*Tensor{Empty(x.dtype, 4)}, []*Tensor{x})
			if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "h.0.weight") {
				t.Errorf("%s: %v", what, err)
			}
			x.Fill(7)
			into := Empty(x.dtype, 4)
			if err := Materialize([]*Tensor{into}, []*Tensor{x}); err != nil || into.Float32s()[3] != 7 {
				t.Errorf("after Fill: %v, %v", into, err)
			}
		}
	}
	x := New(Meta, Float32, 4, 4)
	for want, pair := range map[string][2][]*Tensor{
		"0 to take the values":   {{Zeros(4)}, nil},
		"one shape":              {{Zeros(4)}, {x}},
		"first operand is on":    {{Zeros(4)}, {Zeros(4)}},
		"second operand has":     {{x.Clone()}, {x}},
		"must be contiguous":     {{Zeros(4, 4).T()}, {x}},
		"second operand: the va": {{freedTensor(4, 4)}, {x}},
	} {
		if err := Materialize(pair[0], pair[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func repeat(n int, fn func()) {
	for range n {
		fn()
	}
}

func freedTensor(shape ...int) *Tensor {
	t := Zeros(shape...)
	t.Free()
	return t
}
