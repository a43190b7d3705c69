// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"math/bits"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// sumBlock returns the sum of key·bits over elements of a block, each of size bytes.
func sumBlock(keys []uint64, data []byte, size int) uint64 {
	at := unsafe.Pointer(unsafe.SliceData(data))
	switch size {
	case 4:
		return sumOf(keys, unsafe.Slice((*uint32)(at), len(keys)))
	case 8:
		return sumOfWide(keys, unsafe.Slice((*uint64)(at), len(keys)))
	case 2:
		return sumOf(keys, unsafe.Slice((*uint16)(at), len(keys)))
	default:
		return sumOf(keys, data)
	}
}

// sumOf has several sums under way, which do not wait for each other.
func sumOf[T uint8 | uint16 | uint32](keys []uint64, x []T) uint64 {
	var a, b, c, d uint64
	x = x[:len(keys)]
	for len(keys) >= 8 {
		k, v := keys[:8:8], x[:8:8]
		a += k[0]*uint64(v[0]) + k[4]*uint64(v[4])
		b += k[1]*uint64(v[1]) + k[5]*uint64(v[5])
		c += k[2]*uint64(v[2]) + k[6]*uint64(v[6])
		d += k[3]*uint64(v[3]) + k[7]*uint64(v[7])
		keys, x = keys[8:], x[8:]
	}
	for i, k := range keys {
		a += k * uint64(x[i])
	}
	return a + b + c + d
}

// sumOfWide gives each half of an element a key, for the highest bits of a whole one would meet
// the lowest of the key alone.
func sumOfWide(keys, x []uint64) (sum uint64) {
	for i, k := range keys {
		sum += k*(x[i]&(1<<32-1)) + bits.RotateLeft64(k, 31)*(x[i]>>32)
	}
	return sum
}

// countTiny returns how many elements of float32 lie between zero and a limit.
func countTiny(data []byte, limit uint32) (n int64) {
	const magnitude = 1<<31 - 1
	for _, x := range unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/4) {
		if x&magnitude-1 < limit-1 { // of zero, the difference wraps around
			n++
		}
	}
	return n
}

// Projections. The tensor is a matrix: dim 0 by all others. The sign of an element is that of its
// row times that of its column, so that a product of matrices computes the projections, and
// that of a box needs the signs of its rows and columns alone.

// sign returns 1 or -1 for a row or a column.
func sign(projection int, column bool, i int) float32 {
	x := uint64(i)<<3 | uint64(projection)<<1
	if column {
		x |= 1
	}
	return 1 - 2*float32(mix(x)>>63)
}

// project adds the projections of a part to its digest.
func (p *Part) project(host *tensor.Tensor, d *Digest) {
	whole := p.whole()
	if p.Rows != nil && p.Boxes == nil {
		b := p.boxes()
		b[0].Shape[0] = 1
		_, columns := rowsAndColumns(b[0], whole)
		rows := make([]int, len(p.Rows))
		for i, row := range p.Rows {
			rows[i] = int(row)
		}
		if len(whole) == 1 { // which is a row
			rows, columns = []int{0}, rows
		}
		d.project(host, rows, columns)
		return
	}
	for _, b := range p.boxes() {
		if numElems(b.Shape) == 0 {
			continue
		}
		box := host
		for dim, n := range b.Shape {
			box = box.Narrow(dim, b.LocalStart[dim], n)
		}
		rows, columns := rowsAndColumns(b, whole)
		d.project(box, rows, columns)
	}
}

// project adds the projections of a matrix, of these rows and columns of the whole one.
func (d *Digest) project(matrix *tensor.Tensor, rows, columns []int) {
	signs := make([]float32, 0, numSigns*len(columns))
	for _, c := range columns {
		for k := range numSigns {
			signs = append(signs, sign(k, true, c))
		}
	}
	matrix = matrix.To(tensor.Float32).Contiguous().Reshape(len(rows), len(columns))
	sums := matrix.MatMul(tensor.FromFloat32(signs, len(columns), numSigns)).Float32s()
	for i, row := range rows {
		for k := range numSigns {
			d.Signs[k] += float64(sign(k, false, row) * sums[i*numSigns+k])
		}
	}
}

// rowsAndColumns returns which rows and columns of the whole tensor, as a matrix, a box has. A
// tensor of one dim is a row.
func rowsAndColumns(b mesh.Box, whole []int) (rows, columns []int) {
	first := min(1, max(0, len(whole)-1)) // dim of the columns
	rows, columns = []int{0}, []int{0}
	for d, n := range b.Shape {
		into := &columns
		if d < first {
			into = &rows
		}
		next := make([]int, 0, len(*into)*n)
		for _, at := range *into {
			for i := range n {
				next = append(next, at*whole[d]+b.Start[d]+i)
			}
		}
		*into = next
	}
	return rows, columns
}
