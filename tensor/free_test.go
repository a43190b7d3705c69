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
