// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// TensorDifference is what differs between two tensors of one name.
type TensorDifference struct {
	Name   string
	DTypes [2]safetensors.DType // in A and in B
	Shapes [2][]int
	// NumDiffer elements have other values. NaN equals NaN here.
	NumElements, NumDiffer int64
	// Largest is the largest difference of two elements, infinite if only one of them
	// is a number; At is the index of that element in row-major order.
	Largest float64
	At      int64
	// Relative is the norm of the difference over the norm of A, infinite where A is 0.
	Relative float64
	// Opaque: the dtype has no values that Cohort can compute with. The bytes were
	// compared, and NumDiffer counts the bytes.
	Opaque bool
}

// Misshapen reports tensors of other shapes, whose values cannot be compared.
func (d TensorDifference) Misshapen() bool { return !slices.Equal(d.Shapes[0], d.Shapes[1]) }

// Index returns the place of an element, given in row-major order.
func Index(at int64, shape []int) []int {
	index := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		if n := int64(shape[i]); n > 0 {
			index[i] = int(at % n)
			at /= n
		}
	}
	return index
}

// Difference is what differs between two sources.
type Difference struct {
	OnlyA, OnlyB []safetensors.Info // sorted by name
	Tensors      []TensorDifference // those that differ, in the order of A
	NumEqual     int                // tensors
	NumCompared  int
}

// Equal reports whether the sources have the same tensors with the same values.
func (d *Difference) Equal() bool {
	return len(d.OnlyA)+len(d.OnlyB)+len(d.Tensors) == 0
}

// Compare compares the tensors of two sources by their names. Tensors of other dtypes
// are compared by their values, and count as different. progress is called with the
// bytes of A that were compared so far; it may be nil.
func Compare(ctx context.Context, a, b checkpoint.Source, progress func(done, total int64)) (*Difference, error) {
	inB := make(map[string]safetensors.Info)
	for _, info := range b.Infos() {
		inB[info.Name] = info
	}
	d := &Difference{}
	both := []safetensors.Info{}
	var done, total int64
	for _, info := range a.Infos() {
		if _, ok := inB[info.Name]; !ok {
			d.OnlyA = append(d.OnlyA, info)
			continue
		}
		both = append(both, info)
		total += max(info.NumBytes(), 0)
	}
	common := make(map[string]bool, len(both))
	for _, info := range both {
		common[info.Name] = true
		t, err := compareTensor(ctx, a, b, info, inB[info.Name], func(n int64) {
			done += n
			if progress != nil {
				progress(done, total)
			}
		})
		if err != nil {
			return nil, err
		}
		d.NumCompared++
		if t == nil {
			d.NumEqual++
			continue
		}
		d.Tensors = append(d.Tensors, *t)
	}
	for name, info := range inB {
		if !common[name] {
			d.OnlyB = append(d.OnlyB, info)
		}
	}
	for _, list := range [][]safetensors.Info{d.OnlyA, d.OnlyB} {
		slices.SortFunc(list, func(x, y safetensors.Info) int { return strings.Compare(x.Name, y.Name) })
	}
	return d, nil
}

// compareTensor returns nil for equal tensors.
func compareTensor(ctx context.Context, a, b checkpoint.Source, ia, ib safetensors.Info, advance func(int64)) (*TensorDifference, error) {
	t := &TensorDifference{Name: ia.Name, DTypes: [2]safetensors.DType{ia.DType, ib.DType}, Shapes: [2][]int{ia.Shape, ib.Shape}}
	if t.Misshapen() {
		advance(ia.NumBytes())
		return t, nil
	}
	decodeA, sizeA := decoder(ia.DType)
	decodeB, sizeB := decoder(ib.DType)
	if decodeA == nil || decodeB == nil {
		t.Opaque = true
		if ia.DType != ib.DType {
			advance(ia.NumBytes())
			return t, nil
		}
		decodeA, sizeA = decoder(safetensors.U8)
		decodeB, sizeB = decodeA, sizeA
	}
	if (ia.DType == safetensors.C64) != (ib.DType == safetensors.C64) {
		return nil, fmt.Errorf("%s: tensor %q is %v, and %s has it as %v: a complex number has no real value to compare", a.Name(), ia.Name, ia.DType, b.Name(), ib.DType)
	}
	other := make([]byte, min(int64(PieceBytes/sizeA*sizeB), max(ib.NumBytes(), 0)))
	var told int64 // bytes of which advance knows
	// each reads both tensors side by side.
	each := func(use func(mine, theirs []byte, n int, first int64) error) error {
		return Pieces(ctx, a, ia, func(mine []byte, offset int64) error {
			n := len(mine) / sizeA
			first := offset / int64(sizeA)
			theirs := other[:n*sizeB]
			if err := b.ReadRange(ib.Name, theirs, first*int64(sizeB)); err != nil {
				return err
			}
			if err := use(mine, theirs, n, first); err != nil {
				return err
			}
			if end := offset + int64(len(mine)); end > told {
				advance(end - told)
				told = end
			}
			return nil
		})
	}
	if ia.DType == ib.DType { // most tensors are equal, which their bytes tell soonest
		err := each(func(mine, theirs []byte, _ int, _ int64) error {
			if !bytes.Equal(mine, theirs) {
				return errDiffer
			}
			return nil
		})
		if !errors.Is(err, errDiffer) {
			return nil, err
		}
	}
	s := &sums{sameDType: ia.DType == ib.DType}
	err := each(func(mine, theirs []byte, n int, first int64) error {
		s.add(mine, theirs, n, first, decodeA, decodeB, sizeA, sizeB)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s.numDiffer == 0 && s.sameDType {
		return nil, nil
	}
	t.NumElements, t.NumDiffer, t.Largest, t.At = s.n, s.numDiffer, s.largest, s.at
	switch {
	case s.squaresDiff == 0:
	case s.squaresA == 0:
		t.Relative = math.Inf(1)
	default:
		t.Relative = math.Sqrt(s.squaresDiff / s.squaresA)
	}
	return t, nil
}

var errDiffer = errors.New("the bytes differ")

// sums collects the differences of a tensor, block by block.
type sums struct {
	sameDType             bool
	n, numDiffer, at      int64
	largest               float64
	squaresA, squaresDiff float64
	x, y                  [4096]float64
}

func (s *sums) add(a, b []byte, n int, first int64, decodeA, decodeB func([]float64, []byte), sizeA, sizeB int) {
	for begin := 0; begin < n; begin += len(s.x) {
		count := min(len(s.x), n-begin)
		ba, bb := a[begin*sizeA:(begin+count)*sizeA], b[begin*sizeB:(begin+count)*sizeB]
		x, y := s.x[:count], s.y[:count]
		decodeA(x, ba)
		s.n += int64(count)
		if s.sameDType && bytes.Equal(ba, bb) {
			for _, v := range x {
				if v-v == 0 {
					s.squaresA += v * v
				}
			}
			continue
		}
		decodeB(y, bb)
		for i, v := range x {
			if v-v == 0 { // neither infinite nor NaN
				s.squaresA += v * v
			}
			w := y[i]
			if v == w || v != v && w != w {
				continue
			}
			s.numDiffer++
			diff := math.Abs(v - w)
			if diff != diff { // one of them is NaN, or they are infinities of two signs
				diff = math.Inf(1)
			}
			if diff > s.largest {
				s.largest, s.at = diff, first+int64(begin+i)
			}
			s.squaresDiff += diff * diff
		}
	}
}
