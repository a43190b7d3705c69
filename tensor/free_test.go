// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"runtime"
	"testing"
)

// A freed value, and what shares its memory, cannot be read; values of a tape stay.
func TestFree(t *testing.T) {
	x := FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
	view := x.Transpose(0, 1)
	x.Free()
	x.Free()
	mustFail(t, "Free was called", func() { x.Float32s() })
	mustFail(t, "Free was called", func() { view.Float32s() })
	tape := NewTape(true)
	defer tape.Close()
	z := tape.Leaf(Full(1, 3)).Add(Full(2, 3))
	z.Free()
	if got := z.Float32s(); got[0] != 3 {
		t.Errorf("a tape's value is %v after Free", got)
	}
	// The collector does not free it once more.
	before := collectable.bytes.Load()
	for range 100 {
		Full(1, 1000).Free()
	}
	if after := collectable.bytes.Load(); after > before {
		t.Errorf("%d bytes are left to the collector, %d before", after, before)
	}
	runtime.GC()
}

// TestReleasedFromTheStart: a tensor can be made without memory, and views of it; they have
// values when it is restored.
func TestReleasedFromTheStart(t *testing.T) {
	before, _ := MemoryInUse() // the collector may free what other tests have left
	x := On(CPU()).Released(Float32, 3, 4)
	x.SetName("weight")
	row := x.Narrow(0, 1, 1)
	if now, _ := MemoryInUse(); now > before || !x.IsReleased() || !row.IsReleased() {
		t.Errorf("%d bytes are held", now-before)
	}
	mustFail(t, "weight", func() { row.Float32s() })
	if err := x.Restore(func(x *Tensor) error { x.Fill(2); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := row.Float32s(); len(got) != 4 || got[3] != 2 {
		t.Errorf("a view of it is %v", got)
	}
}
