// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// CollectivesOptions choose what Collectives measures.
type CollectivesOptions struct {
	Ops   []string // of [CollectiveOps]
	Bytes []int    // sizes of each rank's tensor, multiples of 4
	// Memory are kinds of tensor memory: "shared" (tensor.NewShared, which the
	// ranks of a node reduce in place) and "private".
	Memory []string
	Reps   int // calls in a loop; 0 chooses by size
}

// CollectiveOps are the operations that Collectives knows.
func CollectiveOps() []string { return []string{"all_reduce", "broadcast", "all_gather", "barrier"} }

// MemoryKinds are the kinds of memory that Collectives knows.
func MemoryKinds() []string { return []string{"shared", "private"} }

// Backends are how collectives can be done.
func Backends() []string { return []string{"native"} }

// Transports are how ranks can be told to exchange data.
func Transports() []string { return []string{"auto", "shm", "tcp"} }

// CheckBackend reports a backend that there is not.
func CheckBackend(name string) error { return oneOf("backend", name, Backends(), []string{"gloo"}) }

// CheckTransport reports a transport that there is not.
func CheckTransport(name string) error {
	return oneOf("transport", name, Transports(), []string{"unix"})
}

// maxCollectiveBytes bounds a rank's tensor.
const maxCollectiveBytes = 1 << 32

// Validate reports the first option that makes no sense.
func (o CollectivesOptions) Validate() error {
	for _, op := range o.Ops {
		if err := oneOf("operation", op, CollectiveOps(), nil); err != nil {
			return err
		}
	}
	for _, m := range o.Memory {
		if err := oneOf("memory", m, MemoryKinds(), nil); err != nil {
			return err
		}
	}
	for _, n := range o.Bytes {
		if n < 4 || n > maxCollectiveBytes || n%4 != 0 {
			return fmt.Errorf("%d bytes: want a multiple of 4 (float32) from 4 to %d", n, maxCollectiveBytes)
		}
	}
	if o.Reps < 0 || o.Reps > maxSteps {
		return fmt.Errorf("%d calls in a loop: want 1 to %d, or 0 to choose by size", o.Reps, maxSteps)
	}
	return nil
}

// Collectives measures collective operations as one rank of group: every rank
// calls it with the same options. The median is over loops, each closed by a
// barrier and divided by its length: with more ranks than cores, one rank's
// clock around one call lies. The 99th percentile is of single calls by this
// rank's clock. A size is that of the tensor that a rank puts in, and
// gb_per_s is that size by the time.
func Collectives(ctx context.Context, group *dist.Group, o CollectivesOptions, emit func(Result) error) error {
	if err := o.Validate(); err != nil {
		return fmt.Errorf("bench collectives: %w", err)
	}
	for _, bytes := range o.Bytes {
		for _, memory := range o.Memory {
			for _, op := range o.Ops {
				if op == "barrier" {
					continue
				}
				c, err := newCollective(ctx, group, op, memory, bytes)
				if err != nil {
					return err
				}
				if err := c.measure(ctx, o.Reps, emit); err != nil {
					return err
				}
			}
		}
	}
	if !slices.Contains(o.Ops, "barrier") {
		return nil
	}
	c := &collective{group: group, op: "barrier", call: func() error { return group.Barrier(ctx) }}
	return c.measure(ctx, o.Reps, emit)
}

// collective is one operation on its tensors.
type collective struct {
	group      *dist.Group
	op, memory string
	bytes      int
	call       func() error
}

func newCollective(ctx context.Context, group *dist.Group, op, memory string, bytes int) (*collective, error) {
	ones := func(n int) *tensor.Tensor {
		make := tensor.New
		if memory == "shared" {
			make = tensor.NewShared
		}
		t := make(tensor.CPU(), tensor.Float32, n)
		t.Fill(1)
		return t
	}
	c := &collective{group: group, op: op, memory: memory, bytes: bytes}
	numElems := bytes / 4
	x := ones(numElems)
	want, result := 1.0, x
	switch op {
	case "all_reduce":
		want = float64(group.Size())
		c.call = func() error { return group.AllReduce(ctx, x, dist.Sum) }
	case "broadcast":
		c.call = func() error { return group.Broadcast(ctx, x, 0) }
	case "all_gather":
		result = ones(numElems * group.Size())
		result.Fill(0)
		c.call = func() error { return group.AllGather(ctx, result, x) }
	}
	// The first call maps memory and fills caches, and has to be right.
	if err := c.call(); err != nil {
		return nil, err
	}
	for _, v := range []float64{result.Narrow(0, 0, 1).Item(), result.Narrow(0, result.NumElems()-1, 1).Item()} {
		if v != want {
			return nil, fmt.Errorf("bench collectives: %s of %d bytes of ones over %d ranks gave %v, want %v", op, bytes, group.Size(), v, want)
		}
	}
	x.Fill(0) // sums stay what they are
	return c, nil
}

// measure times the operation and emits the result.
func (c *collective) measure(ctx context.Context, reps int, emit func(Result) error) error {
	if reps == 0 {
		reps = min(2000, max(15, (64<<20)/max(1, c.bytes)))
	}
	loop := func(each func() error) (time.Duration, error) {
		if err := c.group.Barrier(ctx); err != nil {
			return 0, err
		}
		start := time.Now()
		for range reps {
			if err := each(); err != nil {
				return 0, err
			}
		}
		err := c.group.Barrier(ctx)
		return time.Since(start), err
	}
	var loops, calls times
	for range 3 {
		took, err := loop(c.call)
		if err != nil {
			return err
		}
		loops = append(loops, took/time.Duration(reps))
	}
	if _, err := loop(func() error {
		start := time.Now()
		err := c.call()
		calls = append(calls, time.Since(start))
		return err
	}); err != nil {
		return err
	}
	median := loops.median()
	return emit(Result{
		Bench: "collectives", Case: c.op, Backend: "native", Transport: c.group.Transport(), Memory: c.memory,
		Ranks: c.group.Size(), Bytes: c.bytes, MedianMicros: micros(cmp.Or(median, 1)), MinMicros: micros(loops.quantile(0)),
		P99Micros: micros(calls.quantile(0.99)), GBPerSec: perSecond(float64(c.bytes), median),
	})
}
