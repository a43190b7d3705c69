// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Reduction computes one [operation.ReduceOp] on elements of one type for a group of some
// size. Its methods take whole elements, aligned to their size, and allocate
// nothing. [ReductionFor] makes one; the zero value
// cannot be used.
//
// A collective goes through three steps. Each rank prepares its own
// contribution ([Reduction.Prepare], for [operation.PremulSum] only). Contributions are
// reduced, either two at a time ([Reduction.Into]) or all of them at once in the
// order of ranks ([Reduction.All]). What was reduced two at a time is finished
// once ([Reduction.Finish], for [operation.Avg] only); All does that itself.
//
// What it means, by the type of the elements:
//
//   - Floats: Min and Max are NaN if one element is. bfloat16 and float16 are
//     computed in float32 and rounded when they are stored: after every step of
//     Into, once in All.
//   - Integers wrap around on overflow. Avg is the (wrapped) sum divided by the
//     number of ranks, cut off towards zero.
//   - Booleans are bytes 0 and 1: Sum and Max are "or", Product and Min "and".
//     There is no average of them.
//   - BAnd, BOr and BXor are of integers and booleans, PremulSum is of floats.
type Reduction struct {
	elem     kernel.Elem
	merging  kernel.Merging
	numRanks int // what Avg divides by, 1 for other reductions
	divisor  int // what All divides by
	factor   float32
	scaled   bool // contributions are multiplied by factor first
	large    bool // results go past the caches
}

// Reducer combines src into dst element by element: dst = dst ∘ src. Both have
// the same number of whole elements, aligned to them. It is commutative bit
// for bit (but for the payload of NaNs), not associative.
type Reducer func(dst, src []byte)

// ReductionFor returns the reduction of elements of a type over numRanks ranks,
// or a [fault.ReduceError].
func ReductionFor(op operation.ReduceOp, dtype operation.DType, numRanks int) (Reduction, error) {
	if !op.Valid() || !dtype.Valid() || mergings[dtype][op.Kind()] == noMerging || numRanks < 1 {
		return Reduction{}, &fault.ReduceError{Op: op, DType: dtype}
	}
	r := Reduction{
		elem:     elems[dtype],
		merging:  mergings[dtype][op.Kind()],
		numRanks: 1,
		divisor:  1,
		factor:   op.Factor(),
		scaled:   op.Kind() == operation.KindPremulSum,
	}
	if op == operation.Avg {
		r.numRanks, r.divisor = numRanks, numRanks
	}
	return r, nil
}

const (
	numDTypes    = operation.Bool + 1
	numReduceOps = operation.KindPremulSum + 1
)

var elems = [numDTypes]kernel.Elem{
	operation.Float32: kernel.ElemFloat32, operation.Float64: kernel.ElemFloat64, operation.BFloat16: kernel.ElemBFloat16, operation.Float16: kernel.ElemFloat16,
	operation.Int64: kernel.ElemInt64, operation.Int32: kernel.ElemInt32, operation.Int8: kernel.ElemInt8, operation.Uint8: kernel.ElemUint8, operation.Bool: kernel.ElemUint8,
}

const noMerging kernel.Merging = 255

var (
	ofFloats = [numReduceOps]kernel.Merging{
		operation.Sum: kernel.MergeSum, operation.Product: kernel.MergeProduct, operation.Min: kernel.MergeMin, operation.Max: kernel.MergeMax,
		operation.Avg: kernel.MergeSum, operation.BAnd: noMerging, operation.BOr: noMerging, operation.BXor: noMerging, operation.KindPremulSum: kernel.MergeSum,
	}
	ofIntegers = [numReduceOps]kernel.Merging{
		operation.Sum: kernel.MergeSum, operation.Product: kernel.MergeProduct, operation.Min: kernel.MergeMin, operation.Max: kernel.MergeMax,
		operation.Avg: kernel.MergeSum, operation.BAnd: kernel.MergeAnd, operation.BOr: kernel.MergeOr, operation.BXor: kernel.MergeXor, operation.KindPremulSum: noMerging,
	}
	ofBools = [numReduceOps]kernel.Merging{
		operation.Sum: kernel.MergeOr, operation.Product: kernel.MergeAnd, operation.Min: kernel.MergeAnd, operation.Max: kernel.MergeOr,
		operation.Avg: noMerging, operation.BAnd: kernel.MergeAnd, operation.BOr: kernel.MergeOr, operation.BXor: kernel.MergeXor, operation.KindPremulSum: noMerging,
	}
	mergings = [numDTypes]*[numReduceOps]kernel.Merging{
		operation.Float32: &ofFloats, operation.Float64: &ofFloats, operation.BFloat16: &ofFloats, operation.Float16: &ofFloats,
		operation.Int64: &ofIntegers, operation.Int32: &ofIntegers, operation.Int8: &ofIntegers, operation.Uint8: &ofIntegers, operation.Bool: &ofBools,
	}
)

// NeedsPrepare reports whether Prepare does more than copy. It is the same on all
// ranks, whatever their factors.
func (r *Reduction) NeedsPrepare() bool { return r.scaled }

// Prepare writes this rank's contribution to dst. src is the rank's data, and may be
// dst.
func (r *Reduction) Prepare(dst, src []byte) {
	if r.scaled {
		kernel.Premultiply(r.elem, dst, src, r.factor)
	} else if unsafe.SliceData(dst) != unsafe.SliceData(src) {
		copy(dst, src)
	}
}

// Into computes dst = dst ∘ src. It is commutative bit for bit (but for the bits
// of NaNs), not associative.
func (r *Reduction) Into(dst, src []byte) {
	dsts, srcs := [1][]byte{dst}, [2][]byte{dst, src}
	kernel.Merge(r.elem, r.merging, dsts[:], srcs[:], 1, false)
}

// All computes dst = srcs[0] ∘ srcs[1] ∘ … and finishes it, in one pass over
// memory. srcs are the contributions of all ranks, as long as dst. dst may be one of
// them.
func (r *Reduction) All(dst []byte, srcs [][]byte) {
	dsts := [1][]byte{dst}
	kernel.Merge(r.elem, r.merging, dsts[:], srcs, r.divisor, r.past(dst))
}

// AllTo is All with several destinations, each of which may be one of srcs. The same
// pass writes the result to all of them.
func (r *Reduction) AllTo(dsts, srcs [][]byte) {
	kernel.Merge(r.elem, r.merging, dsts, srcs, r.divisor, r.past(dsts[0]))
}

// Partial returns the reduction for the contributions of some ranks only: its All and
// AllTo do not finish the result, which Finish does.
func (r *Reduction) Partial() Reduction {
	p := *r
	p.divisor = 1
	return p
}

// largeBytes is the size from which results are written past the caches. In the caches
// they would push out everything else, and be gone before they are read.
const largeBytes = 4 << 20

// Large returns the reduction for a result of numBytes that All writes in pieces. It
// writes a large result past the caches, unless the result lies where a source is. For a
// result in one piece All does so by itself.
func (r *Reduction) Large(numBytes int) Reduction {
	l := *r
	l.large = numBytes >= largeBytes
	return l
}

func (r *Reduction) past(dst []byte) bool { return r.large || len(dst) >= largeBytes }

// NeedsFinish reports whether Finish changes anything.
func (r *Reduction) NeedsFinish() bool { return r.numRanks > 1 }

// Finish makes the result from what Into has reduced of all ranks' contributions.
func (r *Reduction) Finish(data []byte) {
	if r.numRanks > 1 {
		one := [1][]byte{data}
		kernel.Merge(r.elem, r.merging, one[:], one[:], r.numRanks, false)
	}
}
