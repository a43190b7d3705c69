// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"math"
)

// ReduceOp is how the elements of several ranks become one: a kind, and for
// [PremulSum] a factor.
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
	premulSum
	numReduceOps
)

var reduceNames = [numReduceOps]string{"sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"}

// PremulSum is the sum of what ranks have, each multiplied by its rank's factor
// first. The factor is each rank's own and may differ between ranks.
func PremulSum(factor float32) ReduceOp {
	return premulSum | ReduceOp(math.Float32bits(factor))<<32
}

// Kind returns the reduction without a factor: what ranks must agree on.
func (r ReduceOp) Kind() ReduceOp { return r & 0xff }

// Factor returns the factor of a [PremulSum], 1 for other reductions.
func (r ReduceOp) Factor() float32 {
	if r.Kind() == premulSum {
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
	return r < premulSum || r.Kind() == premulSum && r>>8&0xffffff == 0
}
