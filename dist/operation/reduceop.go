// SPDX-License-Identifier: Apache-2.0

package operation

import (
	"fmt"
	"math"
)

// ReduceOp is how a reduction makes one element of the elements of all ranks. It is a
// kind, such as [Sum], and for [PremulSum] also a factor. The zero value is Sum.
type ReduceOp uint64

// The kinds of reductions. Their numbers travel between ranks: add at the end only.
const (
	Sum ReduceOp = iota
	Product
	Min
	Max
	Avg  // the sum divided by the number of ranks
	BAnd // bit by bit
	BOr
	BXor
	KindPremulSum // the kind of every [PremulSum], without its factor
	numReduceOps
)

var reduceNames = [numReduceOps]string{"sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"}

// PremulSum returns the sum of the ranks' elements, each multiplied by its rank's factor
// first. Every rank has a factor of its own.
func PremulSum(factor float32) ReduceOp {
	return KindPremulSum | ReduceOp(math.Float32bits(factor))<<32
}

// Kind returns the reduction without its factor: ranks must agree on the kind.
func (r ReduceOp) Kind() ReduceOp { return r & 0xff }

// Factor returns the factor of a [PremulSum], 1 for other reductions.
func (r ReduceOp) Factor() float32 {
	if r.Kind() == KindPremulSum {
		return math.Float32frombits(uint32(r >> 32))
	}
	return 1
}

func (r ReduceOp) String() string {
	if k := r.Kind(); k < numReduceOps {
		return reduceNames[k]
	}
	return fmt.Sprintf("reduction(%d)", uint64(r))
}

// Valid reports whether r is one of the reductions.
func (r ReduceOp) Valid() bool {
	return r < KindPremulSum || r.Kind() == KindPremulSum && r>>8&0xffffff == 0
}
