// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// Bags are lists of ids: bag b has the positions Bounds[b] to Bounds[b+1].
type Bags struct {
	IDs     []int64
	Bounds  []int64
	Padding int64     // an id that does not count, -1 for none
	Weights []float32 // of the positions, nil for 1
}

// NumBags returns the number of bags.
func (b Bags) NumBags() int { return len(b.Bounds) - 1 }

// Rows says where the gradient of a position comes from: which bag it is in,
// and with what factor. With mean the factor is one over the ids that count.
func (b Bags) Rows(g []float32, mean bool) RowsOf {
	rows := RowsOf{Data: g, Index: make([]int32, len(b.IDs)), Scale: b.Weights}
	if mean {
		rows.Scale = make([]float32, len(b.IDs))
	}
	for bag := range b.NumBags() {
		factor := float32(0)
		if mean {
			factor = 1 / float32(max(1, b.count(bag)))
		}
		for pos := b.Bounds[bag]; pos < b.Bounds[bag+1]; pos++ {
			rows.Index[pos] = int32(bag)
			if mean {
				rows.Scale[pos] = factor
			}
		}
	}
	return rows
}

// count returns how many ids of a bag count.
func (b Bags) count(bag int) int {
	n := 0
	for _, id := range b.IDs[b.Bounds[bag]:b.Bounds[bag+1]] {
		if id != b.Padding {
			n++
		}
	}
	return n
}

// SumBags computes for each bag the sum, or mean, of the rows of table
// [entries, width] that its ids name, times their weights. An empty bag gives 0.
func SumBags(p *work.Pool, dst, table []float32, b Bags, width int, mean bool) {
	add, addScaled, mulScalar := vec().add, vec().addScaled, vec().mulScalar
	overItems(p, b.NumBags(), (len(b.IDs)+b.NumBags())*width, func(lo, hi int) {
		for bag := lo; bag < hi; bag++ {
			row := dst[bag*width : (bag+1)*width]
			clear(row)
			for pos := b.Bounds[bag]; pos < b.Bounds[bag+1]; pos++ {
				id := int(b.IDs[pos])
				if int64(id) == b.Padding {
					continue
				}
				if x := table[id*width : (id+1)*width]; b.Weights == nil {
					add(row, row, x)
				} else {
					addScaled(row, row, x, b.Weights[pos])
				}
			}
			if mean {
				mulScalar(row, row, 1/float32(max(1, b.count(bag))))
			}
		}
	})
}

// MaxBags computes for each bag the largest elements of the rows that its ids
// name, and at which position each was found, -1 in an empty bag, which gives 0.
func MaxBags(p *work.Pool, dst []float32, owner []int32, table []float32, b Bags, width int) {
	overItems(p, b.NumBags(), (len(b.IDs)+b.NumBags())*width, func(lo, hi int) {
		for bag := lo; bag < hi; bag++ {
			row, from := dst[bag*width:(bag+1)*width], owner[bag*width:(bag+1)*width]
			clear(row)
			for c := range from {
				from[c] = -1
			}
			for pos := b.Bounds[bag]; pos < b.Bounds[bag+1]; pos++ {
				id := int(b.IDs[pos])
				if int64(id) == b.Padding {
					continue
				}
				for c, x := range table[id*width : (id+1)*width] {
					if from[c] < 0 || x > row[c] || x != x && row[c] == row[c] {
						row[c], from[c] = x, int32(pos)
					}
				}
			}
		}
	})
}

// BagWeights computes the gradient of the weights of sums: for each position
// the product of the row of its id and the gradient of its bag.
func BagWeights(p *work.Pool, dweights, table, g []float32, b Bags, width int) {
	overItems(p, b.NumBags(), len(b.IDs)*width, func(lo, hi int) {
		for bag := lo; bag < hi; bag++ {
			row := g[bag*width : (bag+1)*width]
			for pos := b.Bounds[bag]; pos < b.Bounds[bag+1]; pos++ {
				dweights[pos] = 0
				if id := int(b.IDs[pos]); int64(id) != b.Padding {
					dweights[pos] = dot(table[id*width:(id+1)*width], row)
				}
			}
		}
	})
}

func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s [4]float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s[0] += a[i] * b[i]
		s[1] += a[i+1] * b[i+1]
		s[2] += a[i+2] * b[i+2]
		s[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s[0] += a[i] * b[i]
	}
	return s[0] + s[1] + (s[2] + s[3])
}
