// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cpu"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// A released value keeps its views and its place on the tape, cannot be read, and
// is what it was once it has been restored.
func TestReleaseAndRestore(t *testing.T) {
	for _, owner := range []string{"collector", "tape", "shared"} {
		t.Run(owner, func(t *testing.T) {
			tape := NewTape(true)
			defer tape.Close()
			w := FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
			switch owner {
			case "tape":
				w = tape.Const(w).MulScalar(1)
			case "shared":
				s := NewShared(CPU(), Float32, 2, 2)
				s.WithFloat32s(func(data []float32) { copy(data, []float32{1, 2, 3, 4}) })
				w = s
			}
			row := w.Narrow(0, 1, 1)
			x := tape.Leaf(Full(1, 2, 2))
			y := x.Mul(tape.Const(w)).Sum()

			liveBytes := tape.LiveBytes()
			w.Release()
			w.Release()
			if !row.IsReleased() {
				t.Error("a view has its memory after Release")
			}
			if got := tape.LiveBytes(); owner == "tape" && got >= liveBytes {
				t.Errorf("the tape holds %d bytes after Release, %d before", got, liveBytes)
			}
			mustFail(t, "has been released", func() { row.Float32s() })
			mustFail(t, "add scalar(float32[2 2]): the first operand: the value's memory has been released", func() { w.AddScalar(1) })
			mustFail(t, "has been released", func() { _ = y.Backward(context.Background()) })
			if _, err := w.Lend(); err == nil {
				t.Error("a released value was lent")
			}
			if got := w.String(); got != "float32[2 2] (released)" {
				t.Errorf("it prints as %q", got)
			}

			mustFail(t, "is a view of a part of what was released, of 8 bytes of 16: restore the whole", func() {
				_ = row.Restore(func(*Tensor) error { return nil })
			})
			failure := errors.New("a peer is gone")
			if err := w.Restore(func(into *Tensor) error { into.Fill(7); return failure }); err != failure || !w.IsReleased() {
				t.Fatalf("Restore returned %v, released %v", err, w.IsReleased())
			}
			mustFail(t, "fill(float32[3])", func() {
				_ = w.Restore(func(*Tensor) error { fail("fill", []*Tensor{Zeros(3)}, "does not fit"); return nil })
			})
			if !w.IsReleased() {
				t.Fatal("a Restore that panicked has left memory that nobody filled")
			}
			err := w.Restore(func(into *Tensor) error {
				into.WithFloat32s(func(data []float32) { copy(data, []float32{1, 2, 3, 4}) })
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Restore(func(*Tensor) error { return failure }); err != nil {
				t.Errorf("Restore of what has its memory: %v", err)
			}
			if got := row.Float32s(); !slices.Equal(got, []float32{3, 4}) {
				t.Errorf("the view is %v", got)
			}
			if owner != "tape" { // the failed pass has given up what it had consumed
				again := NewTape(true)
				defer again.Close()
				x := again.Leaf(Full(1, 2, 2))
				y := x.Mul(again.Const(w)).Sum()
				w.Release()
				if err := w.Restore(func(into *Tensor) error { into.Fill(7); return failure }); err != failure {
					t.Fatal(err)
				}
				if err := w.Restore(func(into *Tensor) error {
					into.WithFloat32s(func(data []float32) { copy(data, []float32{1, 2, 3, 4}) })
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				grads, err := y.Grad(context.Background(), nil, []*Tensor{x})
				if err != nil || !slices.Equal(grads[0].Float32s(), []float32{1, 2, 3, 4}) {
					t.Errorf("the gradient is %v, %v", grads, err)
				}
			}
		})
	}
}

// What is released when its tape is closed, or Backward consumes it, is gone.
func TestReleasedIsFreed(t *testing.T) {
	tape := NewTape(true)
	x := tape.Const(Full(1, 3)).MulScalar(2)
	x.Release()
	tape.Close()
	mustFail(t, "has been freed", func() { x.Float32s() })
	mustFail(t, "restore(float32[3]): the value has been freed", func() { _ = x.Restore(nil) })
	mustFail(t, "release(float32[3]): the value has been freed", func() { x.Release() })
}

// Released memory does not count as the collector's.
func TestReleaseLeavesNothing(t *testing.T) {
	x := Full(1, 1<<16)
	before := collectable.bytes.Load()
	for range 10 {
		x.Release()
		if err := x.Restore(func(*Tensor) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if got := collectable.bytes.Load(); got > before {
		t.Errorf("%d bytes are left to the collector, %d before", got, before)
	}
}

// A second device makes, draws and computes what the CPU does, and a tensor goes
// there and back with its gradient.
func TestOtherDevice(t *testing.T) {
	other := cpu.New(1)
	on := On(other)
	for name, pair := range map[string][2]*Tensor{
		"zeros":   {Zeros(2, 3), on.Zeros(2, 3)},
		"full":    {Full(2.5, 3), on.Full(2.5, 3)},
		"float32": {FromFloat32([]float32{1, 2}), on.FromFloat32([]float32{1, 2})},
		"float64": {FromFloat64([]float64{1, 2}), on.FromFloat64([]float64{1, 2})},
		"bool":    {FromBool([]bool{true, false}).To(Float32), on.FromBool([]bool{true, false}).To(Float32)},
		"int64":   {FromInt64([]int64{1, 2}).To(Float32), on.FromInt64([]int64{1, 2}).To(Float32)},
		"uint8":   {FromUint8([]uint8{1, 2}).To(Float32), on.FromUint8([]uint8{1, 2}).To(Float32)},
	} {
		if pair[1].Device() != other || !slices.Equal(pair[0].Float32s(), pair[1].Float32s()) {
			t.Errorf("%s: %v on the CPU, %v on the other device %s", name, pair[0], pair[1], pair[1].Device().Name())
		}
	}
	here, there := NewGenerator(3), NewGenerator(3)
	a, b := Zeros(40), on.Empty(Float32, 40)
	here.Uniform(a, -1, 1)
	there.Uniform(b, -1, 1)
	a2, b2 := Zeros(40), on.Zeros(40)
	here.Normal(a2, 0, 1)
	there.Normal(b2, 0, 1)
	if !slices.Equal(a.Float32s(), b.Float32s()) || !slices.Equal(a2.Float32s(), b2.Float32s()) {
		t.Error("a generator draws other numbers on the other device")
	}
	mustFail(t, "wants a contiguous tensor", func() { there.Uniform(on.Zeros(2, 3).Transpose(0, 1), 0, 1) })

	tape := NewTape(true)
	defer tape.Close()
	x := tape.Leaf(FromFloat32([]float32{1, 2, 3, 4}, 2, 2))
	moved := x.Transpose(0, 1).ToDevice(other)
	if moved.Device() != other || moved.ToDevice(other) != moved {
		t.Error("ToDevice left the tensor where it was, or copied it where it is")
	}
	y := moved.Mul(tape.Const(on.FromFloat32([]float32{1, 10, 100, 1000}, 2, 2))).Sum().ToDevice(CPU())
	if got := y.Item(); got != 1+30+200+4000 {
		t.Errorf("the sum is %v", got)
	}
	grads, err := y.Grad(context.Background(), nil, []*Tensor{x})
	if err != nil || grads[0].Device() != CPU() || !slices.Equal(grads[0].Float32s(), []float32{1, 100, 10, 1000}) {
		t.Errorf("the gradient is %v, %v", grads, err)
	}
	if got := Full(1, 2).ToDevice(Meta); got.Device() != Meta || got.NumElems() != 2 {
		t.Errorf("on Meta it is %v", got)
	}
	mustFail(t, "has no data", func() { On(Meta).Zeros(2).ToDevice(CPU()) })
	mustFail(t, "two devices", func() { Full(1, 2).Add(on.Full(1, 2)) })
}

// The parameters of one step may be on several devices, and the scale on any.
func TestStepOnSeveralDevices(t *testing.T) {
	other := cpu.New(1)
	for _, scaleOn := range []Device{CPU(), other} {
		var params []*Tensor
		var updates []SGDUpdate
		for _, dev := range []Device{CPU(), other, CPU()} {
			p := On(dev).Full(1, 3)
			params = append(params, p)
			updates = append(updates, SGDUpdate{Param: p, Grad: On(dev).Full(2, 3), SGDScalars: SGDScalars{LR: 1}})
		}
		scale := On(scaleOn).Full(0.25)
		SGD(updates, scale)
		table := On(other).Full(1, 4, 1)
		params = append(params, table)
		SGDRows(table, nil, RowGrad{IDs: On(other).FromInt64([]int64{0, 1, 2, 3}), Rows: On(other).Full(2, 4, 1), NumRows: 4}, SGDScalars{LR: 1}, scale)
		for i, p := range params {
			if got := p.Float32s(); got[0] != 0.5 || got[2] != 0.5 {
				t.Errorf("parameter %d on %s is %v after the step", i, p.Device().Name(), got)
			}
		}
	}
}

// blind is a device whose memory the CPU does not see.
type blind struct{ device.Device }

// Elements on a blind device are read, and edited, by copies; nothing lends them.
func TestBlindDevice(t *testing.T) {
	on := On(&blind{cpu.New(1)})
	x := on.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
	NewGenerator(1).Uniform(x.Narrow(0, 1, 1), 5, 6)
	row := x.Narrow(0, 0, 1)
	row.WithFloat32s(func(data []float32) { data[1] += 10 })
	if got := x.Float32s(); got[0] != 1 || got[1] != 12 || got[2] < 5 || got[3] < 5 {
		t.Errorf("the elements are %v", got)
	}
	if got := row.Sum().Item(); got != 13 {
		t.Errorf("the sum is %v", got)
	}
	if got := x.Transpose(0, 1).ToDevice(CPU()).Float32s(); got[0] != 1 || got[2] != 12 {
		t.Errorf("on the CPU it is %v", got)
	}
	mustFail(t, "the memory of device cpu is not the host's: copy the tensor to the CPU by ToDevice", func() { x.Buffer() })
	if _, err := x.Lend(); err == nil || CPUSees(x.Device()) {
		t.Errorf("it was lent: %v", err)
	}
}

// pinning counts what is pinned on a device of its own.
type pinning struct {
	device.Device
	pinned atomic.Int64
}

func (p *pinning) Pin(device.Memory) (func(), error) {
	p.pinned.Add(1)
	return func() { p.pinned.Add(-1) }, nil
}

// Pinned memory is unpinned before it is given back, and not otherwise.
func TestPinnedMemory(t *testing.T) {
	dev := &pinning{Device: cpu.New(1)}
	x := NewPinned(dev, Float32, 8)
	if x.Device() != CPU() || dev.pinned.Load() != 1 {
		t.Fatalf("a pinned tensor is on %s, %d are pinned", x.Device().Name(), dev.pinned.Load())
	}
	x.Free()
	if dev.pinned.Load() != 0 {
		t.Error("freed memory is pinned")
	}
	NewPinned(dev, Float32, 0)
	NewPinned(CPU(), Float32, 8).Free()
	if n := dev.pinned.Load(); n != 0 {
		t.Errorf("%d are pinned", n)
	}
	NewPinned(dev, Float32, 8) // left to the collector
	deadline := time.Now().Add(loaded.Allow(10 * time.Second))
	for runtime.GC(); dev.pinned.Load() != 0; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("what the collector freed is pinned")
		}
	}
}

// What tensors hold is counted, and the most that they have held, in memory of both kinds.
func TestMemoryInUse(t *testing.T) {
	c := cpu.New(1)
	private, shared := c.Alloc(1000, false), c.Alloc(10_000, true)
	if s := c.MemoryStats(); s.InUse != 1024+10_000 || s.Peak != s.InUse {
		t.Errorf("a block of 1000 bytes and a slab of 10000 count as %+v", s)
	}
	c.Free(shared)
	c.ResetMemoryPeak()
	c.Free(private)
	c.Free(c.Alloc(64, true))
	if s := c.MemoryStats(); s.InUse != 0 || s.Peak != 1024 {
		t.Errorf("after a block of 1000 bytes, %+v", s)
	}

	big := New(CPU(), Float32, 1<<20)
	ResetMemoryPeak()
	if now, peak := MemoryInUse(); now < 4<<20 || peak < 4<<20 {
		t.Errorf("with a tensor of 4 MiB %d bytes are in use, %d at most", now, peak)
	}
	runtime.KeepAlive(big)
}
