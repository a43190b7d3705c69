// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// assignBuckets is PyTorch's rule for buckets: tensors are taken in turn, each
// added to the bucket of its dtype, which is closed when it has reached the
// present limit; the dtype then goes on to the next limit, the last of which
// stays. Tensor i has the index indices[i], or i, and then the buckets are
// sorted by their first index. Buckets that are left open follow, in the order
// in which their dtypes first came.
func assignBuckets(numElems []int, dtypes []tensor.DType, limits, indices []int) [][]int {
	type open struct {
		indices      []int
		bytes, limit int
	}
	byDType := map[tensor.DType]*open{}
	var order []*open
	var done [][]int
	for i, n := range numElems {
		o := byDType[dtypes[i]]
		if o == nil {
			o = &open{}
			byDType[dtypes[i]] = o
			order = append(order, o)
		}
		index := i
		if indices != nil {
			index = indices[i]
		}
		o.indices = append(o.indices, index)
		o.bytes += n * dtypes[i].Size()
		if o.bytes >= limits[min(o.limit, len(limits)-1)] {
			done = append(done, o.indices)
			o.indices, o.bytes = nil, 0
			o.limit++
		}
	}
	for _, o := range order {
		if len(o.indices) > 0 {
			done = append(done, o.indices)
		}
	}
	if indices == nil {
		slices.SortFunc(done, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	}
	return done
}

// fillBuckets cuts the parameters of each dtype into runs that end when their bytes
// have reached the limit: first for the dtype's first run, then rest.
func fillBuckets(params []*nn.Parameter, first, rest int) [][]*nn.Parameter {
	numElems, dtypes, indices := make([]int, len(params)), make([]tensor.DType, len(params)), make([]int, len(params))
	for i, p := range params {
		numElems[i], dtypes[i], indices[i] = p.Data().NumElems(), p.Data().DType(), i
	}
	var runs [][]*nn.Parameter
	for _, run := range assignBuckets(numElems, dtypes, []int{first, rest}, indices) {
		ps := make([]*nn.Parameter, len(run))
		for i, k := range run {
			ps[i] = params[k]
		}
		runs = append(runs, ps)
	}
	return runs
}

// flatten returns memory for tensors of one dtype, back to back, and a view of
// it for each.
func flatten(alloc func(tensor.Device, tensor.DType, ...int) *tensor.Tensor, like []*tensor.Tensor) (flat *tensor.Tensor, views []*tensor.Tensor) {
	numElems, offset := 0, 0
	for _, t := range like {
		numElems += t.NumElems()
	}
	flat = alloc(like[0].Device(), like[0].DType(), numElems)
	for _, t := range like {
		views = append(views, flat.Narrow(0, offset, t.NumElems()).Reshape(t.Shape()...))
		offset += t.NumElems()
	}
	return flat, views
}

// memoryFor returns what makes buckets of a group, nil for memory that is not communicated: ranks of one node reduce each other's in place.
// Without others there, or where all goes over PyTorch's wire, the pool's memory is quicker.
func memoryFor(group *dist.Group) func(tensor.Device, tensor.DType, ...int) *tensor.Tensor {
	if group != nil && group.LocalSize() > 1 && group.Transport() != "gloo" {
		return tensor.NewShared
	}
	return tensor.New
}
