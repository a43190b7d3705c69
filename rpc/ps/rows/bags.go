// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/tensor"
)

// GatherBags writes the sums, or means, of the rows of bags: bag b has the keys from
// offsets[b] up to the next offset, the last bag up to the end of keys. An empty bag has
// zeros. len(dst) = len(offsets)·Width. A sum has the bits of tensor's EmbeddingBag.
func (t *Table) GatherBags(dst []float32, keys []int64, offsets []int64, mean bool) error {
	width := t.schema.Width
	if len(dst) != len(offsets)*width {
		return t.fail(KindDType, "%d values for %d bags of %d", len(dst), len(offsets), width)
	}
	if e := t.checkOffsets(offsets, len(keys)); e != nil {
		return e
	}
	if len(keys) == 0 {
		clear(dst)
		return nil
	}
	const most = 4096 // rows that lie in scratch at once
	bounds := append(append(make([]int64, 0, len(offsets)+1), offsets...), int64(len(keys)))
	var table []float32
	var ids []int64
	for b := 0; b < len(offsets); {
		end := b + 1
		for end < len(offsets) && bounds[end+1]-bounds[b] <= most {
			end++
		}
		lo, hi := bounds[b], bounds[end]
		n := int(hi - lo)
		if len(table) < n*width {
			table, ids = make([]float32, n*width), make([]int64, n)
			for i := range ids {
				ids[i] = int64(i)
			}
		}
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(table))), 4*n*width)
		if n > 0 {
			if err := t.Gather(bytes, tensor.Float32, keys[lo:hi]); err != nil {
				return err
			}
		}
		local := make([]int64, end-b+1)
		for i := range local {
			local[i] = bounds[b+i] - lo
		}
		kernel.SumBags(nil, dst[b*width:end*width], table, kernel.Bags{IDs: ids[:n], Bounds: local, Padding: -1}, width, mean)
		b = end
	}
	return nil
}

// checkOffsets returns what is wrong with the offsets of bags, nil if nothing.
func (t *Table) checkOffsets(offsets []int64, keys int) *Error {
	if len(offsets) == 0 {
		if keys > 0 {
			return t.fail(KindKey, "%d keys and no bag", keys)
		}
		return nil
	}
	if offsets[0] != 0 {
		return t.fail(KindKey, "the first bag begins at %d, not at 0", offsets[0])
	}
	for b, o := range offsets {
		if o > int64(keys) || b > 0 && o < offsets[b-1] {
			return t.fail(KindKey, "bag %d begins at %d of %d keys: want offsets that do not decrease", b, o, keys)
		}
	}
	return nil
}
