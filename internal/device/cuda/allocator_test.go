// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// virtual is a source whose streams are played. A use of memory is known by the number of
// uses on its stream; clocks say what a stream has waited for.
type virtual struct {
	t        *testing.T
	capacity int
	taken    map[uintptr]int
	next     uintptr
	clocks   [][]int // of each stream: how far it has waited for each other; of itself: its uses
	last     map[uintptr][]use
	noOrder  bool // a planted fault: streams do not wait
}

type use struct {
	stream Stream
	at     int
}

func newVirtual(t *testing.T, numStreams, capacity int) *virtual {
	v := &virtual{t: t, capacity: capacity, taken: map[uintptr]int{}, next: 1 << 20, clocks: make([][]int, numStreams), last: map[uintptr][]use{}}
	for i := range v.clocks {
		v.clocks[i] = make([]int, numStreams)
	}
	return v
}

func (v *virtual) Reserve(size int) (uintptr, error) {
	held := 0
	for _, n := range v.taken {
		held += n
	}
	if held+size > v.capacity {
		return 0, &OutOfMemoryError{Device: "virtual", Reason: errors.New("the source is empty")}
	}
	p := v.next
	v.next += uintptr(size) + blockUnit
	v.taken[p] = size
	return p, nil
}

func (v *virtual) Release(p uintptr) error {
	if _, ok := v.taken[p]; !ok {
		v.t.Errorf("%#x is released that was not reserved", p)
	}
	delete(v.taken, p)
	return nil
}

func (v *virtual) Order(later, earlier Stream) error {
	if v.noOrder {
		return nil
	}
	for i, n := range v.clocks[earlier] {
		v.clocks[later][i] = max(v.clocks[later][i], n)
	}
	return nil
}

// touch is work on a stream with the memory from p on. It returns whether the stream has
// waited for all that did something with that memory before.
func (v *virtual) touch(p uintptr, size int, s Stream) bool {
	v.clocks[s][s]++
	ordered := true
	for at := p / blockUnit; at <= (p+uintptr(size)-1)/blockUnit; at++ {
		for _, u := range v.last[at] {
			ordered = ordered && v.clocks[s][u.stream] >= u.at
		}
	}
	return ordered
}

// note remembers a use for those that come after.
func (v *virtual) note(p uintptr, size int, s Stream) {
	for at := p / blockUnit; at <= (p+uintptr(size)-1)/blockUnit; at++ {
		kept := slices.DeleteFunc(v.last[at], func(u use) bool { return u.stream == s })
		v.last[at] = append(kept, use{s, v.clocks[s][s]})
	}
}

type heldBlock struct {
	p    uintptr
	size int
	s    Stream
}

// play allocates, uses and frees at random on several streams, and returns how many first
// uses of blocks had not waited for those who had the memory before.
func play(t *testing.T, v *virtual, a *Allocator, rng *rand.Rand, steps int) (unordered int) {
	var blocks []heldBlock
	inUse := 0
	for range steps {
		if len(blocks) == 0 || rng.IntN(5) < 2 && len(blocks) < 40 {
			b := heldBlock{size: 1 + rng.IntN(1<<(4+rng.IntN(17))), s: Stream(rng.IntN(len(v.clocks)))}
			var err error
			if b.p, err = a.Alloc(b.size, b.s); err != nil {
				t.Fatal(err)
			}
			for _, o := range blocks {
				if b.p < o.p+uintptr(o.size) && o.p < b.p+uintptr(b.size) {
					t.Fatalf("blocks at %#x and %#x of %d and %d bytes overlap", b.p, o.p, b.size, o.size)
				}
			}
			if !v.touch(b.p, b.size, b.s) {
				unordered++
			}
			v.note(b.p, b.size, b.s)
			blocks = append(blocks, b)
			inUse += b.size
		} else if i := rng.IntN(len(blocks)); rng.IntN(2) == 0 {
			// Another stream waits for the block's, and uses it.
			s := Stream(rng.IntN(len(v.clocks)))
			for j, n := range v.clocks[blocks[i].s] {
				v.clocks[s][j] = max(v.clocks[s][j], n)
			}
			a.Use(blocks[i].p, s)
			v.touch(blocks[i].p, blocks[i].size, s)
			v.note(blocks[i].p, blocks[i].size, s)
		} else {
			if err := a.Free(blocks[i].p); err != nil {
				t.Fatal(err)
			}
			inUse -= blocks[i].size
			blocks = slices.Delete(blocks, i, i+1)
		}
		if got := a.Stats().InUse; got != inUse {
			t.Fatalf("%d bytes are in use, want %d", got, inUse)
		}
	}
	for _, b := range blocks {
		if err := a.Free(b.p); err != nil {
			t.Fatal(err)
		}
	}
	return unordered
}

// TestAllocatorOrdersStreams: memory that goes from one block to the next is used only after
// all streams that used it before. Without the waits the test finds it.
func TestAllocatorOrdersStreams(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		v := newVirtual(t, 3, 1<<40)
		a := NewAllocator(v, AllocatorOptions{})
		if n := play(t, v, a, rng, 400); n > 0 {
			t.Errorf("seed %d: %d blocks were used too early", seed, n)
		}
		if err := a.ReleaseFree(); err != nil {
			t.Fatal(err)
		}
		if s := a.Stats(); len(v.taken) > 0 || s.Reserved != 0 || s.Allocs != s.Frees || s.Reserves != s.Releases {
			t.Errorf("seed %d: after everything was freed %d segments are held: %+v", seed, len(v.taken), s)
		}
		v = newVirtual(t, 3, 1<<40)
		v.noOrder = true
		if n := play(t, v, NewAllocator(v, AllocatorOptions{}), rng, 400); n == 0 {
			t.Errorf("seed %d: streams that do not wait are not found", seed)
		}
	}
}

// TestAllocatorRepeats: a step that repeats has the same addresses, and takes nothing new
// from the source.
func TestAllocatorRepeats(t *testing.T) {
	v := newVirtual(t, 1, 1<<40)
	a := NewAllocator(v, AllocatorOptions{})
	step := func() (at []uintptr) {
		var open []uintptr
		for i := range 60 {
			p, err := a.Alloc(1000<<(i%12), 0)
			if err != nil {
				t.Fatal(err)
			}
			at, open = append(at, p), append(open, p)
			if i%3 == 2 {
				if err := a.Free(open[0]); err != nil {
					t.Fatal(err)
				}
				open = open[1:]
			}
		}
		for _, p := range open {
			if err := a.Free(p); err != nil {
				t.Fatal(err)
			}
		}
		return at
	}
	first := step()
	reserves := a.Stats().Reserves
	for range 3 {
		if got := step(); !slices.Equal(got, first) {
			t.Fatal("the addresses of a step differ from those of the first")
		}
	}
	if n := a.Stats().Reserves; n != reserves {
		t.Errorf("steps that repeat reserved %d segments", n-reserves)
	}
}

// TestAllocatorRunsOut: what is kept is given back before there is an error, and the error
// has the sizes.
func TestAllocatorRunsOut(t *testing.T) {
	for what, c := range map[string]struct {
		capacity, limit int
		says            []string
	}{
		"source": {100 << 20, 0, []string{"virtual is out of memory: 60 MiB are wanted; 60 MiB are in use and 0 B more are kept", "the source is empty"}},
		"limit":  {1 << 40, 100 << 20, []string{"the device is out of memory: 60 MiB are wanted", "of a limit of 100 MiB"}},
	} {
		v := newVirtual(t, 2, c.capacity)
		a := NewAllocator(v, AllocatorOptions{Limit: c.limit})
		for range 3 { // each on a stream of its own, whose kept memory is in the way of the other
			for s := range Stream(2) {
				p, err := a.Alloc(60<<20, s)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if err := a.Free(p); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 6 {
			if _, err := a.Alloc(10<<20, 0); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		_, err := a.Alloc(60<<20, 0)
		var none *OutOfMemoryError
		if !errors.As(err, &none) || !slices.Equal(none.Largest, []HeldBlocks{{10 << 20, 6}}) {
			t.Fatalf("%s: the error is %v", what, err)
		}
		for _, says := range append(c.says, "the largest in use: 6 × 10 MiB") {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: the error %q does not say %q", what, err, says)
			}
		}
		if _, err := a.Alloc(1<<20, 0); err != nil {
			t.Errorf("%s: after the error: %v", what, err)
		}
	}
}

// TestAllocatorMistakes: a block that is freed twice is an error, and each block of a direct
// allocator is its own.
func TestAllocatorMistakes(t *testing.T) {
	v := newVirtual(t, 1, 1<<40)
	a := NewAllocator(v, AllocatorOptions{Direct: true})
	p, err := a.Alloc(700, 0)
	if err != nil || v.taken[p] != 1024 {
		t.Fatalf("a direct block: %v, %v", v.taken, err)
	}
	if err := a.Free(p); err != nil || len(v.taken) != 0 {
		t.Errorf("freed: %v, %v", v.taken, err)
	}
	if err := a.Free(p); err == nil || !strings.Contains(err.Error(), "freed twice") {
		t.Errorf("freed twice: %v", err)
	}
	if p, err := a.Alloc(0, 0); p != 0 || err != nil || a.Free(p) != nil {
		t.Errorf("a block of no bytes: %#x, %v", p, err)
	}
	if _, err := a.Alloc(-1, 0); err == nil {
		t.Error("a negative size is no error")
	}
}
