// SPDX-License-Identifier: Apache-2.0

package tensor

import "runtime"

// Free gives the memory of a value back now instead of when the collector finds
// it. Nothing needs it: it is for large values that are made under no tape at a
// high rate, such as what a server receives, whose next ones then lie in memory
// that is still in the caches. Reading t, or a view of the same memory, panics
// afterwards. A value that belongs to a tape stays.
func (t *Tensor) Free() {
	s := t.storage
	if s.scope != nil || s.freed || s.mem.Ptr == nil {
		return
	}
	s.cleanup.Stop()
	collectable.bytes.Add(-int64(s.mem.Size))
	s.free()
	runtime.KeepAlive(s) // until here, so that the cleanup has not run
}
