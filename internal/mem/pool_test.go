// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestBlocksNeverOverlap runs random Get and Put and checks, by filling every
// block with its own number, that no two live blocks share a byte.
func TestBlocksNeverOverlap(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, 0))
	p := NewPool()
	type held struct {
		b    *Block
		mark byte
	}
	var live []held
	fill := func(h held) {
		data := h.b.Bytes()
		for i := range data {
			data[i] = h.mark
		}
	}
	for step := range 4000 {
		if len(live) > 0 && rng.IntN(100) < 48 {
			i := rng.IntN(len(live))
			h := live[i]
			for at, v := range h.b.Bytes() {
				if v != h.mark {
					t.Fatalf("seed %d step %d: byte %d of a block of %d is %d, want %d", seed, step, at, h.b.Size(), v, h.mark)
				}
			}
			p.Put(h.b)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		size := rng.IntN(2000)
		if rng.IntN(10) == 0 {
			size = rng.IntN(1 << 20)
		}
		b := p.Get(size)
		if b.Size() < size || uintptr(b.Pointer())%alignment != 0 {
			t.Fatalf("Get(%d) gave %d bytes at %p", size, b.Size(), b.Pointer())
		}
		h := held{b, byte(step)}
		fill(h)
		live = append(live, h)
	}
	for _, h := range live {
		p.Put(h.b)
	}
	if got := p.Stats().InUse; got != 0 {
		t.Errorf("%d bytes in use after all were given back", got)
	}
}

func TestSteadyUseTakesNothingMore(t *testing.T) {
	p := NewPool()
	step := func() {
		var bs []*Block
		for i := range 40 {
			bs = append(bs, p.Get(1000*i*i))
		}
		for i := range bs {
			p.Put(bs[(i*7)%len(bs)])
		}
	}
	step()
	want := p.Stats().Reserved
	for range 100 {
		step()
	}
	if got := p.Stats().Reserved; got != want {
		t.Errorf("100 equal steps took %d bytes more from the system", got-want)
	}
}

func TestPutTwicePanics(t *testing.T) {
	p := NewPool()
	b := p.Get(100)
	p.Put(b)
	defer func() {
		if recover() == nil {
			t.Error("giving a block back twice did not panic")
		}
	}()
	p.Put(b)
}

func TestSlabIsSharedThroughItsDescriptor(t *testing.T) {
	s, err := NewSlab(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.FD < 0 {
		t.Skip("this system has no memory that processes can share by descriptor")
	}
	other, err := MapSlab(s.FD, len(s.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(other)
	s.Bytes()[12345] = 7
	if other[12345] != 7 {
		t.Error("a second mapping of the slab does not see the first one's write")
	}
}

func BenchmarkGetPut(b *testing.B) {
	p := NewPool()
	p.Put(p.Get(1 << 20))
	for b.Loop() {
		p.Put(p.Get(1 << 20))
	}
}

// TestHugeBlock: rounding the size up must not wrap around to a small block.
func TestHugeBlock(t *testing.T) {
	p := NewPool()
	defer func() {
		if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), "the system gave no") {
			t.Errorf("panicked with %v, want an error of the system", err)
		}
	}()
	t.Errorf("got a block of %d bytes", p.Get(math.MaxInt-8).Size())
}
