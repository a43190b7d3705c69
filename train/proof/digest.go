// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// numSigns is how many random projections a digest has.
const numSigns = 4

// Digest stands for the elements of a tensor, or for some of them. The digests of parts that do
// not overlap add up to that of the whole, whatever the parts are. So ranks digest their own
// boxes, and a digest made on one mesh can be compared with one made on another.
type Digest struct {
	Elems   int64             // number of elements
	Sum     uint64            // changes with any bit of any element, and with the place of an element
	Squares float64           // sum of the squares
	Signs   [numSigns]float64 // sums of the elements with random signs, which the places decide
	Tiny    int64             // of a gradient: elements so small that they may be rounding alone
}

// Add adds the digest of another part of the tensor.
func (d *Digest) Add(o Digest) {
	d.Elems += o.Elems
	d.Sum += o.Sum
	d.Squares += o.Squares
	d.Tiny += o.Tiny
	for i, s := range o.Signs {
		d.Signs[i] += s
	}
}

// Norm returns the Euclidean norm of the elements.
func (d Digest) Norm() float64 { return math.Sqrt(d.Squares) }

// Part is what a rank digests of a tensor.
type Part struct {
	Local *tensor.Tensor // the boxes, one after the other
	Shape []int          // of the whole tensor
	Boxes []mesh.Box     // nil: Local is the whole tensor
	Rows  []int64        // in place of Boxes: Local has these rows of the tensor
	// Near asks for the projections, without which only bits can be compared.
	Near bool
	// IsGradient asks for the number of tiny elements.
	IsGradient bool
}

// tiny is what an element is tiny by, relative to the root of the mean square of the elements.
const tiny = 1e-4

// DigestAll returns the digest of each part, nil parts have none. It computes on the threads
// of the process.
func DigestAll(parts []*Part) ([]Digest, error) {
	digests := make([]Digest, len(parts))
	var work []piece
	for i, p := range parts {
		if p == nil {
			continue
		}
		if err := p.check(); err != nil {
			return nil, err
		}
		host := onHost(p.Local)
		digests[i] = Digest{Elems: int64(host.NumElems())}
		if host.NumElems() == 0 {
			continue
		}
		if host.DType().IsFloat() {
			digests[i].Squares = floats(host).SumSquares()
			if p.Near {
				p.project(host, &digests[i])
			}
		}
		limit := uint32(0)
		if p.IsGradient && host.DType() == tensor.Float32 {
			limit = math.Float32bits(float32(tiny * math.Sqrt(digests[i].Squares/float64(host.NumElems()))))
		}
		work = p.cut(work, host, &digests[i], limit)
	}
	sumAll(work)
	return digests, nil
}

// check reports boxes that are not those of the local tensor.
func (p *Part) check() error {
	if p.Boxes == nil && p.Rows != nil {
		if shape := p.Local.Shape(); len(shape) == 0 || shape[0] != len(p.Rows) || len(p.Shape) != len(shape) {
			return fmt.Errorf("proof: %d rows in a tensor of shape %v, and the tensor on this rank has the shape %v", len(p.Rows), p.Shape, shape)
		}
		return nil
	}
	if p.Boxes == nil {
		return nil
	}
	n := 0
	for _, b := range p.Boxes {
		if len(b.Start) != len(p.Shape) || len(b.Shape) != len(p.Shape) || len(b.LocalStart) != len(p.Shape) {
			return fmt.Errorf("proof: a box of %d dims in a tensor of shape %v", len(b.Shape), p.Shape)
		}
		n += numElems(b.Shape)
	}
	if n != p.Local.NumElems() {
		return fmt.Errorf("proof: the boxes have %d elements, and the tensor on this rank has %d (shape %v of %v)", n, p.Local.NumElems(), p.Local.Shape(), p.Shape)
	}
	return nil
}

// boxes returns where the elements of the local tensor are in the whole one.
func (p *Part) boxes() []mesh.Box {
	if p.Boxes != nil {
		return p.Boxes
	}
	if p.Rows != nil {
		return p.rows()
	}
	zero := make([]int, len(p.Local.Shape()))
	return []mesh.Box{{Start: zero, Shape: p.Local.Shape(), LocalStart: zero}}
}

// rows returns a box for each row, and one for rows that follow each other.
func (p *Part) rows() (boxes []mesh.Box) {
	for i, row := range p.Rows {
		if i > 0 && row == p.Rows[i-1]+1 {
			boxes[len(boxes)-1].Shape[0]++
			continue
		}
		b := mesh.Box{Start: make([]int, len(p.Shape)), Shape: slices.Clone(p.Shape), LocalStart: make([]int, len(p.Shape))}
		b.Start[0], b.Shape[0], b.LocalStart[0] = int(row), 1, i
		boxes = append(boxes, b)
	}
	return boxes
}

// whole returns the shape of the whole tensor.
func (p *Part) whole() []int {
	if p.Boxes != nil || p.Rows != nil {
		return p.Shape
	}
	return p.Local.Shape()
}

// onHost returns t, or a copy of it, with its elements densely in the memory of the CPU.
func onHost(t *tensor.Tensor) *tensor.Tensor {
	if t.Device() != tensor.CPU() {
		t = t.ToDevice(tensor.CPU())
	}
	return t.Detach().Contiguous()
}

// floats returns a tensor of a floating dtype in one that sums exactly enough.
func floats(t *tensor.Tensor) *tensor.Tensor {
	if d := t.DType(); d == tensor.Float32 || d == tensor.Float64 {
		return t
	}
	return t.To(tensor.Float32)
}

func numElems(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// Checksums. The sum over the elements of key·bits, modulo 2⁶⁴. The key of an element depends
// on its place in the whole tensor alone: it is a number of a table times one of its block.
// Keys are odd, so a single element that differs always changes the sum, and several do so
// but for a chance of 2⁻³³.

const (
	blockBits  = 12
	blockElems = 1 << blockBits
)

var keys = sync.OnceValue(func() *[blockElems]uint64 {
	var table [blockElems]uint64
	for i := range table {
		table[i] = mix(uint64(i)) | 1
	}
	return &table
})

// blockKey returns the factor of a block of elements.
func blockKey(block uint64) uint64 { return mix(block^0x9e3779b97f4a7c15) | 1 }

// mix spreads the bits of a number over all of them: the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// piece is a run of elements that lie one after the other in the whole tensor too.
type piece struct {
	t     *tensor.Tensor // keeps data alive
	data  []byte
	size  int    // bytes of an element
	start int    // its place in the whole tensor
	limit uint32 // bits of the number below which an element is tiny
	into  *Digest
}

// pieceBytes is how much of a tensor a thread takes at a time.
const pieceBytes = 1 << 18

// cut appends the pieces of a part.
func (p *Part) cut(work []piece, host *tensor.Tensor, into *Digest, limit uint32) []piece {
	data, size := host.Buffer().Data, host.DType().Size()
	add := func(from, start, n int) {
		for n > 0 {
			m := min(n, pieceBytes/size)
			work = append(work, piece{host, data[from*size : (from+m)*size], size, start, limit, into})
			from, start, n = from+m, start+m, n-m
		}
	}
	for _, b := range p.boxes() {
		eachRun(b, p.whole(), host.Shape(), add)
	}
	return work
}

// eachRun calls fn for each run of a box whose elements lie one after the other both in the
// local tensor (from) and in the whole one (start).
func eachRun(b mesh.Box, whole, local []int, fn func(from, start, n int)) {
	last, n := len(b.Shape), 1
	for last > 0 {
		last--
		n *= b.Shape[last]
		if b.Shape[last] != whole[last] || b.Shape[last] != local[last] {
			break
		}
	}
	if n == 0 || numElems(b.Shape) == 0 {
		return
	}
	at := make([]int, last) // in the box, of the dims before a run
	for {
		from, start := 0, 0
		for d := range b.Shape {
			i := 0
			if d < last {
				i = at[d]
			}
			from = from*local[d] + b.LocalStart[d] + i
			start = start*whole[d] + b.Start[d] + i
		}
		fn(from, start, n)
		d := last - 1
		for ; d >= 0; d-- {
			if at[d]++; at[d] < b.Shape[d] {
				break
			}
			at[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// sumAll adds the checksum of each piece to its tensor's.
func sumAll(work []piece) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(tensor.NumThreads(), len(work)) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(work) {
					return
				}
				atomic.AddUint64(&work[i].into.Sum, work[i].sum())
				if work[i].limit > 0 {
					atomic.AddInt64(&work[i].into.Tiny, countTiny(work[i].data, work[i].limit))
				}
			}
		})
	}
	all.Wait()
}

// sum returns the checksum of a piece.
func (p piece) sum() (sum uint64) {
	table := keys()
	for data, start := p.data, p.start; len(data) > 0; {
		at := start % blockElems
		n := min(blockElems-at, len(data)/p.size)
		sum += blockKey(uint64(start>>blockBits)) * sumBlock(table[at:at+n], data[:n*p.size], p.size)
		data, start = data[n*p.size:], start+n
	}
	return sum
}
