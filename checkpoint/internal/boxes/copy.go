// SPDX-License-Identifier: Apache-2.0

package boxes

import (
	"cmp"
	"errors"
	"io"
	"slices"
)

const (
	// window is how much is read at a time of elements that lie scattered.
	window = 1 << 20
	// maxGap is how many bytes that nobody wants are read rather than skipped by another read.
	maxGap = 32 << 10
	// LocalGap is that for files of this machine, of which a read is a system call.
	LocalGap = 512
)

// Copy says how the elements of a box lie in a file and in memory. The element i lies at
// From + Σ i[d]·FromStrides[d] in the file and at To + Σ i[d]·ToStrides[d] in memory, in bytes.
type Copy struct {
	Shape       []int
	Size        int // bytes of an element
	From        int64
	FromStrides []int64 // none is negative
	To          int64
	ToStrides   []int64
	Swap        int // bytes of the numbers whose bytes are to be reversed, 0 for none
	// Gap is how many bytes that nobody wants are read rather than skipped; 0 stands for 32 KiB.
	Gap int64
}

// Read copies the elements from a file into memory. It goes through the file from its
// beginning to its end, and needs a buffer of at most a MiB.
func (c Copy) Read(r io.ReaderAt, dst []byte) error {
	dims, empty := c.dims()
	if empty {
		return nil
	}
	length := int64(c.Size)
	if n := len(dims); n > 0 && dims[n-1].from == length && dims[n-1].to == length {
		length *= int64(dims[n-1].count)
		dims = dims[:n-1]
	}
	// The runs of the inner dims, from near on, lie close together: they are read at once.
	near, extent, gap := len(dims), length, cmp.Or(c.Gap, maxGap)
	for near > 0 && dims[near-1].from-extent <= gap {
		near--
		extent = max(extent, int64(dims[near].count-1)*dims[near].from+extent)
	}
	s := &scan{r: r, dst: dst, length: length, swap: c.Swap, extent: extent}
	return s.walk(dims, near, c.From, c.To)
}

// dim is one of the nested loops of a Copy.
type dim struct {
	count    int
	from, to int64
}

// dims returns the loops, the outermost first, in the order of the file.
func (c Copy) dims() (list []dim, empty bool) {
	for d, n := range c.Shape {
		switch n {
		case 0:
			return nil, true
		case 1:
		default:
			list = append(list, dim{n, c.FromStrides[d], c.ToStrides[d]})
		}
	}
	slices.SortStableFunc(list, func(a, b dim) int { return cmp.Compare(b.from, a.from) })
	merged := list[:0]
	for _, d := range list {
		if n := len(merged); n > 0 && merged[n-1].from == d.from*int64(d.count) && merged[n-1].to == d.to*int64(d.count) {
			merged[n-1] = dim{merged[n-1].count * d.count, d.from, d.to}
			continue
		}
		merged = append(merged, d)
	}
	return merged, false
}

// scan is a walk through a file.
type scan struct {
	r      io.ReaderAt
	dst    []byte
	length int64 // of a run
	swap   int
	extent int64 // of the runs that are close together

	buffer   []byte
	begin    int64 // of the buffer, in the file
	end      int64
	blockEnd int64 // where the runs that are close together end
}

// walk copies the runs of nested loops. depth is how many loops are outside those whose runs
// are close together.
func (s *scan) walk(dims []dim, depth int, from, to int64) error {
	if depth == 0 {
		s.blockEnd = from + s.extent
	}
	if len(dims) == 0 {
		return s.run(from, to)
	}
	for i := range int64(dims[0].count) {
		if err := s.walk(dims[1:], depth-1, from+i*dims[0].from, to+i*dims[0].to); err != nil {
			return err
		}
	}
	return nil
}

// run copies one run.
func (s *scan) run(from, to int64) error {
	into := s.dst[to : to+s.length]
	if s.length >= window/4 || s.extent == s.length {
		if err := readFull(s.r, into, from); err != nil {
			return err
		}
		swap(into, s.swap)
		return nil
	}
	if from < s.begin || from+s.length > s.end {
		n := max(min(window, s.blockEnd-from), s.length)
		s.buffer = slices.Grow(s.buffer[:0], int(n))[:n]
		if err := readFull(s.r, s.buffer, from); err != nil {
			return err
		}
		s.begin, s.end = from, from+n
	}
	copy(into, s.buffer[from-s.begin:])
	swap(into, s.swap)
	return nil
}

// readFull is ReadAt without its two ways to say that all was read.
func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// swap reverses the bytes of each number.
func swap(b []byte, size int) {
	if size < 2 {
		return
	}
	for ; len(b) >= size; b = b[size:] {
		slices.Reverse(b[:size])
	}
}
