// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// setFirstBuckets lays out the buckets of the first pass, which go by the order of
// the parameters.
func (p *pytorchReducer) setFirstBuckets() {
	limits := []int{math.MaxInt} // one bucket a dtype until the order is known
	if p.o.FindUnused && !p.o.StaticGraph {
		limits = p.limits
	}
	var numElems []int
	var dtypes []tensor.DType
	for _, param := range p.params {
		numElems, dtypes = append(numElems, param.Data().NumElems()), append(dtypes, param.Data().DType())
	}
	assigned := assignBuckets(numElems, dtypes, limits, nil)
	slices.Reverse(assigned)
	p.setBuckets(assigned)
}

// setBuckets lays out the buckets anew.
func (p *pytorchReducer) setBuckets(assigned [][]int) {
	p.buckets = make([]*pytorchBucket, len(assigned))
	p.bucketOf, p.offsetOf = make([]int, len(p.params)), make([]int, len(p.params))
	alloc := memoryFor(p.group)
	for i, indices := range assigned {
		like := make([]*tensor.Tensor, len(indices))
		for j, k := range indices {
			like[j] = p.params[k].Data()
			p.bucketOf[k], p.offsetOf[k] = i, j
		}
		b := &pytorchBucket{indices: indices}
		b.flat, b.views = flatten(alloc, like)
		if p.hook != nil {
			b.low = alloc(b.flat.Device(), p.hook.dtype, b.flat.NumElems())
		}
		p.buckets[i] = b
	}
}

// rebuildDue says whether the next forward pass lays out the buckets anew, in
// the order in which the gradients came: not while any of them may be missing.
func (p *pytorchReducer) rebuildDue() bool {
	return !p.rebuilt && (p.o.StaticGraph || !p.o.FindUnused) && len(p.order) > 0
}

// rebuild takes rank 0's layout, which is sent in two parts: the parameters'
// indices bucket after bucket, with the number of buckets behind them, and the
// buckets' sizes.
func (p *pytorchReducer) rebuild(ctx context.Context) error {
	var numElems []int
	var dtypes []tensor.DType
	for _, k := range p.order {
		d := p.params[k].Data()
		numElems, dtypes = append(numElems, d.NumElems()), append(dtypes, d.DType())
	}
	assigned := assignBuckets(numElems, dtypes, p.limits, p.order)
	indices := make([]int64, 0, len(p.params)+1)
	var sizes []int64
	for _, b := range assigned {
		for _, k := range b {
			indices = append(indices, int64(k))
		}
		sizes = append(sizes, int64(len(b)))
	}
	indices = append(indices, int64(len(assigned)))
	if err := p.broadcastInt32s(ctx, indices); err != nil {
		return fmt.Errorf("ddp: take over the order of rank 0's buckets: %w", err)
	}
	num := indices[len(p.params)]
	if num < 1 || num > int64(len(p.params)) {
		return fmt.Errorf("ddp: rank 0 sent %d buckets for %d parameters", num, len(p.params))
	}
	sizes = append(sizes, make([]int64, len(p.params))...)[:num]
	if err := p.broadcastInt32s(ctx, sizes); err != nil {
		return fmt.Errorf("ddp: take over the sizes of rank 0's buckets: %w", err)
	}
	assigned, err := p.layoutOf(indices[:len(p.params)], sizes)
	if err != nil {
		return err
	}
	p.setBuckets(assigned)
	p.rebuilt, p.order = true, nil
	return nil
}

// layoutOf checks what rank 0 has sent.
func (p *pytorchReducer) layoutOf(indices, sizes []int64) ([][]int, error) {
	seen := make([]bool, len(p.params))
	var assigned [][]int
	at := 0
	for i, size := range sizes {
		if size < 1 || size > int64(len(indices)-at) {
			return nil, fmt.Errorf("ddp: rank 0 sent bucket %d of %d with %d of %d parameters", i, len(sizes), size, len(indices))
		}
		var b []int
		for _, k := range indices[at : at+int(size)] {
			if k < 0 || k >= int64(len(p.params)) || seen[k] {
				return nil, fmt.Errorf("ddp: rank 0 sent buckets with parameter %d of %d, out of range or twice", k, len(p.params))
			}
			seen[k] = true
			if d := p.params[k].Data().DType(); len(b) > 0 && d != p.params[b[0]].Data().DType() {
				return nil, fmt.Errorf("ddp: rank 0 sent a bucket with %s, which is %s here, and %s, which is %s: the ranks' models have different dtypes",
					p.params[b[0]].Name(), p.params[b[0]].Data().DType(), p.params[k].Name(), d)
			}
			b = append(b, int(k))
		}
		assigned = append(assigned, b)
		at += int(size)
	}
	if at != len(indices) {
		return nil, fmt.Errorf("ddp: rank 0 sent buckets with %d of %d parameters", at, len(indices))
	}
	return assigned, nil
}

// broadcastInt32s replaces the numbers by rank 0's.
func (p *pytorchReducer) broadcastInt32s(ctx context.Context, v []int64) error {
	t := tensor.FromInt64(v).To(tensor.Int32)
	if err := p.group.Broadcast(ctx, t, 0); err != nil {
		return err
	}
	copy(v, t.Int64s())
	return nil
}
