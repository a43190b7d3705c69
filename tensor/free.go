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
	if s.scope != nil || s.state != live || s.mem.Ptr == nil {
		return
	}
	s.takeFromCollector()
	s.free()
	runtime.KeepAlive(s) // until here, so that the cleanup has not run
}

// Release gives the memory of t up until [Tensor.Restore] brings it back. All
// views of that memory, and all values of it that a tape has saved for its
// backward pass, stay what they are, but reading them panics with an *Error
// meanwhile. Wrappers that shard parameters release a parameter's gathered
// values between the forward and the backward pass. Who releases a value must
// restore it; users' code does neither. Releasing twice is like once.
func (t *Tensor) Release() {
	s := t.storage
	t.wantNotFreed("release")
	if s.state == released {
		return
	}
	s.takeFromCollector()
	s.giveUp()
	s.state = released
	runtime.KeepAlive(s)
}

// Restore gives t memory again after [Tensor.Release], and calls fill to write
// the values of before into it: by what fill writes a backward pass sees no
// change. A collective that fill only begins must have ended before the values
// are read. When fill fails or panics, t is released again. Restoring what has its
// memory does nothing. t is the whole of its memory and no view of a part, whose
// other parts nobody would fill: that panics with an *Error, and so does a value
// that has been freed.
func (t *Tensor) Restore(fill func(t *Tensor) error) error {
	s := t.storage
	t.wantNotFreed("restore")
	if s.state == live {
		return nil
	}
	if n := t.NumElems() * t.dtype.Size(); n != s.mem.Size || t.IsOverlapping() {
		fail("restore", []*Tensor{t}, "is a view of a part of what was released, of %d bytes of %d: restore the whole", n, s.mem.Size)
	}
	s.mem = memory(s.dev, t.dtype, t.shape, s.shared)
	s.state = live
	if s.scope == nil {
		s.leaveToCollector()
	} else {
		s.scope.count(s.mem.Size)
	}
	version, filled := s.version, false
	defer func() {
		if s.version = version; !filled {
			t.Release()
		}
	}()
	if err := fill(t.detach()); err != nil {
		return err
	}
	filled = true
	return nil
}

// IsReleased reports whether the memory of t has been given up by [Tensor.Release]
// and not been brought back yet.
func (t *Tensor) IsReleased() bool { return t.storage.state == released }
