// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/tensor"
)

// HookTensor is a tensor that a hook keeps between steps.
type HookTensor struct {
	Name        string
	mesh.Tensor // on the ranks of the DDP: whole, or each rank's own values one after the other
}

// HookState returns what the hook keeps between steps; nil for a hook that keeps nothing. A checkpoint
// saves the tensors between two steps. A run that goes on on the same number of ranks loads them
// before its first step, and calls [DDP.HookResumed]. The tensors have the same names and
// shapes at each call.
//
// Of the hooks of this package [PowerSGDHook] keeps something: what each rank has not sent
// yet, and the right matrices.
func (d *DDP) HookState() []HookTensor {
	h, is := d.hook.(*powerSGD)
	r, native := d.reducer.(*nativeReducer)
	if !is || !native {
		return nil
	}
	return h.state(r.hooks.group, r.split.world, r.gradBuckets())
}

// HookResumed says that the tensors of HookState have been loaded. It fails if they are not of a
// hook, and then the hook is as it was.
func (d *DDP) HookResumed() error {
	h, is := d.hook.(*powerSGD)
	r, native := d.reducer.(*nativeReducer)
	if !is || !native || h.numbers == nil {
		return nil
	}
	return h.resumed(r.gradBuckets())
}

// gradBuckets returns the buckets as a hook gets them.
func (r *nativeReducer) gradBuckets() []*GradBucket {
	var all []*GradBucket
	for _, b := range r.buckets {
		all = append(all, b.hooked)
	}
	return all
}

// state lists what the hook keeps. Of the buckets that are not compressed yet, it is zeros.
func (h *powerSGD) state(group *dist.Group, over ranks, buckets []*GradBucket) []HookTensor {
	numbers := []int64{int64(h.step), int64(h.drawn)}
	var kept []HookTensor
	for _, b := range buckets {
		warm := int64(0)
		if b.Buffer.DType() == tensor.Float32 {
			s := h.bucket(group, b)
			if s.warm {
				warm = 1
			}
			kept = append(kept, s.state(over, b.Index)...)
		}
		numbers = append(numbers, warm)
	}
	if h.numbers == nil {
		h.numbers = tensor.New(tensor.CPU(), tensor.Int64, len(numbers))
	}
	h.numbers.CopyFrom(tensor.FromInt64(numbers))
	return append([]HookTensor{{"numbers", over.value(h.numbers, mesh.Replicate(), len(numbers))}}, kept...)
}

func (s *powerBucket) state(over ranks, index int) (kept []HookTensor) {
	if s.errors != nil {
		kept = append(kept, HookTensor{fmt.Sprintf("errors.%d", index), over.value(s.errors, mesh.Shard(0), over.group().Size()*s.errors.NumElems())})
	}
	if s.qs != nil {
		kept = append(kept, HookTensor{fmt.Sprintf("right.%d", index), over.value(s.qs, mesh.Replicate(), s.qs.NumElems())})
	}
	return kept
}

// maxDrawn is more than any run draws, and few enough to be skipped in seconds.
const maxDrawn = 1 << 32

// resumed takes over the numbers of state.
func (h *powerSGD) resumed(buckets []*GradBucket) error {
	numbers := h.numbers.Int64s()
	if numbers[0] < 0 || numbers[1] < 0 || numbers[1] > maxDrawn {
		return fmt.Errorf("the state of the hook %s is of step %d and has drawn %d random words: take another checkpoint, or leave the hook's state out", h, numbers[0], numbers[1])
	}
	h.step, h.drawn = int(numbers[0]), int(numbers[1])
	h.rng = random.NewMT(h.o.Seed)
	h.rng.Skip(h.drawn)
	for i, b := range buckets {
		if s := h.buckets[b.Index]; s != nil {
			s.warm = numbers[2+i] != 0
		}
	}
	return nil
}
