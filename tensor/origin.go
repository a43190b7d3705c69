// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/random"
)

// origin is what memory of [Meta], which has no values, remembers of them: the
// calls that would have written them. [Materialize] makes these calls again
// elsewhere, and only for the elements that are wanted there. Memory that holds
// the result of an operation has no origin.
type origin struct {
	calls []call // in order, from the last one on that wrote all of the memory
	lost  string // the operation that wrote what cannot be made again, "" for none
}

// maxCalls bounds what an origin keeps: a loop that writes the same memory again
// and again gives nobody first values.
const maxCalls = 4096

// call is one that wrote memory of Meta.
type call struct {
	region region // what it wrote
	// redo makes the call again for a part of the region, dst, whose first element
	// has the index at in the region. A region that is not dense has parts all of
	// which are written alike: at says nothing then.
	redo func(r *replay, dst *Tensor, at int)
	say  func() string // what it writes, the same for calls that write the same
	// Where what it needs stands in the streams of generators: its own words, or
	// those of the calls that it copies from.
	words *words
	from  []call
	// It leaves nothing of what was there before.
	overwrites bool
}

// words are those of a Mersenne Twister, from one on.
type words struct {
	anchor *random.MT // a state, which nobody draws from
	at     int        // how many words come before
}

// region is a set of elements of one memory: a view's.
type region struct {
	offset         int
	shape, strides []int
}

func (t *Tensor) region() region { return region{t.offset, t.shape, t.strides} }

func (g region) equal(o region) bool {
	return g.offset == o.offset && slices.Equal(g.shape, o.shape) && slices.Equal(g.strides, o.strides)
}

// each calls fn for the elements of the region that lie in [low, high): n from
// start on, stride apart, of which the first has the index at in a dense region.
func (g region) each(low, high int, fn func(start, n, stride, at int)) {
	if dense := (&Tensor{shape: g.shape, strides: g.strides}).IsContiguous(); dense {
		start, end := max(low, g.offset), min(high, g.offset+numElems(g.shape))
		if start < end {
			fn(start, end-start, 1, start-g.offset)
		}
		return
	}
	var dims []axis
	for i, size := range g.shape {
		if size == 0 {
			return
		}
		if size > 1 && g.strides[i] != 0 {
			dims = append(dims, axis{size, g.strides[i]})
		}
	}
	slices.SortFunc(dims, func(a, b axis) int { return b.stride - a.stride })
	eachOf(dims, g.offset, low, high, fn)
}

// axis is a dim of a region that leads to several elements.
type axis struct{ size, stride int }

// reach returns how far behind the first element of dims the last one lies.
func reach(dims []axis) int {
	n := 0
	for _, d := range dims {
		n += (d.size - 1) * d.stride
	}
	return n
}

func eachOf(dims []axis, base, low, high int, fn func(start, n, stride, at int)) {
	if len(dims) == 0 {
		if low <= base && base < high {
			fn(base, 1, 1, 0)
		}
		return
	}
	d, inner := dims[0], dims[1:]
	behind := reach(inner)
	first := max(0, (low-behind-base+d.stride-1)/d.stride)
	end := min(d.size, (high-base+d.stride-1)/d.stride) // of the range of indices
	if len(inner) == 0 {
		if first < end {
			fn(base+first*d.stride, end-first, d.stride, 0)
		}
		return
	}
	for i := first; i < end; i++ {
		eachOf(inner, base+i*d.stride, low, high, fn)
	}
}

// remember notes a call that wrote t, if it is of Meta.
func (t *Tensor) remember(c call) {
	s := t.storage
	if s.dev != Meta || t.NumElems() == 0 {
		return
	}
	c.region = t.region()
	if c.overwrites && t.IsContiguous() && t.NumElems()*t.dtype.Size() == s.mem.Size {
		s.origin = &origin{calls: []call{c}}
		return
	}
	o := s.origin
	if o == nil || o.lost != "" {
		return
	}
	last := len(o.calls) - 1
	switch {
	case c.overwrites && last >= 0 && o.calls[last].region.equal(c.region):
		s.origin = &origin{calls: append(o.calls[:last:last], c)}
	case last+1 == maxCalls:
		t.forget("more than 4096 calls")
	default:
		o.calls = append(o.calls, c)
	}
}

// wrote notes that op has written t in place: the tape finds out, and of memory of
// Meta nobody knows the values any more.
func (t *Tensor) wrote(op string) {
	t.storage.version++
	t.forget(op)
}

func (t *Tensor) forget(op string) {
	if t.storage.dev == Meta && t.NumElems() > 0 {
		t.storage.origin = &origin{lost: op}
	}
}

// unset notes that memory has been made of which no element is set.
func (t *Tensor) unset() *Tensor {
	if t.storage.dev == Meta {
		t.storage.origin = new(origin)
	}
	return t
}

// filled notes that every element of t has been set to value.
func (t *Tensor) filled(value float64) {
	if t.storage.dev == Meta { // asked here too: most tensors are not, and the closure is memory
		t.remember(call{overwrites: true, redo: func(_ *replay, dst *Tensor, _ int) { dst.Fill(value) },
			say: func() string { return fmt.Sprint(value) }})
	}
}

// scaled notes that every element of t has been multiplied by s.
func (t *Tensor) scaled(s float64) {
	if t.storage.dev == Meta {
		t.remember(call{redo: func(_ *replay, dst *Tensor, _ int) { dst.Scale(s) },
			say: func() string { return fmt.Sprintf("times %v", s) }})
	}
}

// given notes that t has been made of data, in row-major order. It keeps a copy.
func given[T any](t *Tensor, data []T) {
	data = slices.Clone(data)
	t.remember(call{overwrites: true, redo: func(_ *replay, dst *Tensor, at int) {
		dst.storage.write(dst.offset*dst.dtype.Size(), bytesOf(data[at:at+dst.NumElems()]))
	}, say: func() string { return fmt.Sprintf("values %x", digest(bytesOf(data))) }})
}

// computed returns a tensor of Meta whose element i, in row-major order, is fn(i).
func computed(dtype DType, shape []int, fn func(i int) float64) *Tensor {
	t := alloc(nil, Meta, dtype, shape, false)
	values := func(at, n int) []float64 {
		data := make([]float64, n)
		for i := range data {
			data[i] = fn(at + i)
		}
		return data
	}
	t.remember(call{overwrites: true, redo: func(_ *replay, dst *Tensor, at int) {
		dst.CopyFrom(On(dst.Device()).FromFloat64(values(at, dst.NumElems())).To(dst.dtype))
	}, say: func() string { return fmt.Sprintf("values %x", digest(bytesOf(values(0, numElems(shape))))) }})
	return t
}

// copied notes that op has made the values of t of those of src, element by
// element: write does it for a part of both. What cannot be made again is lost.
func (t *Tensor) copied(op string, src *Tensor, overwrites bool, write func(dst, src *Tensor)) {
	if t.storage.dev != Meta {
		return
	}
	o := src.storage.origin
	if o == nil || o.lost != "" || !t.IsContiguous() || !src.IsContiguous() {
		t.forget(op)
		return
	}
	calls, offset, dtype := o.calls[:len(o.calls):len(o.calls)], src.offset, src.dtype
	t.remember(call{from: calls, overwrites: overwrites, redo: func(r *replay, dst *Tensor, at int) {
		part := On(CPU()).Empty(dtype, dst.NumElems())
		r.play(calls, part, offset+at)
		write(dst, part)
		part.Free()
	}, say: func() string { return fmt.Sprintf("%s (%s), element %d on", op, sayCalls(calls), offset) }})
}

// drawn notes that t has been overwritten with what draw makes: the elements from
// one on.
func (t *Tensor) drawn(w *words, say func() string, draw func(r *replay, data []float32, at int)) {
	t.remember(call{overwrites: true, words: w, say: say, redo: func(r *replay, dst *Tensor, at int) {
		dst.WithFloat32s(func(data []float32) { draw(r, data, at) })
	}})
}

// Origin says, for a tensor of [Meta], which values [Materialize] would give it: equal
// texts stand for the same bits. It is "" for a tensor elsewhere, and where nobody
// remembers the values.
func (t *Tensor) Origin() string {
	o := t.storage.origin
	if o == nil || o.lost != "" {
		return ""
	}
	text := sayCalls(o.calls)
	if g := t.region(); len(o.calls) > 0 && !g.equal(o.calls[0].region) {
		text = fmt.Sprintf("%s of (%s)", g, text)
	}
	return text
}

// longText is from how many bytes on a text is replaced by its digest.
const longText = 200

func sayCalls(calls []call) string {
	var b strings.Builder
	for i, c := range calls {
		if i > 0 {
			b.WriteString(", then ")
		}
		b.WriteString(c.say())
		if i > 0 {
			b.WriteString(" for " + c.region.String())
		}
	}
	if b.Len() > longText {
		return fmt.Sprintf("%d calls %x", len(calls), digest([]byte(b.String())))
	}
	return b.String()
}

func (g region) String() string { return fmt.Sprintf("%v from %d by %v", g.shape, g.offset, g.strides) }

func digest(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:8]
}

// firstWord returns the first words that calls need, nil for none.
func firstWord(calls []call) *words {
	var first *words
	for _, c := range calls {
		w := c.words
		if w == nil {
			w = firstWord(c.from)
		}
		if w != nil && (first == nil || w.anchor == first.anchor && w.at < first.at) {
			first = w
		}
	}
	return first
}

// position orders what is made: things that need no words come first.
func (w *words) position() int {
	if w == nil {
		return math.MinInt
	}
	return w.at
}
