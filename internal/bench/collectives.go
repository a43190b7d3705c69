// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// CollectivesOptions choose what Collectives measures.
type CollectivesOptions struct {
	Ops   []string // of [CollectiveOps]
	Bytes []int    // sizes, multiples of an element's
	DType string   // of the tensors' elements, of [CollectiveDTypes]
	// Memory are kinds of tensor memory: "shared" (tensor.NewShared, which the
	// ranks of a node reduce in place) and "private".
	Memory []string
	Reps   int // calls in a loop; 0 chooses by the time of a call
	// LateBy is how late rank 0 comes in the case "late"; 0 means 100 ms.
	LateBy time.Duration
}

// MemoryKinds are the kinds of memory that Collectives knows.
func MemoryKinds() []string { return []string{"shared", "private"} }

// Backends are the implementations of collectives.
func Backends() []string { return []string{"native", "gloo", "mpi"} }

// Transports are the ways in which ranks can exchange data.
func Transports() []string { return []string{"auto", "shm", "unix", "tcp", "tls"} }

// CollectiveDTypes are the types of elements that Collectives knows.
func CollectiveDTypes() []string {
	var names []string
	for _, d := range collectiveDTypes {
		names = append(names, d.String())
	}
	return names
}

var collectiveDTypes = []tensor.DType{
	tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16, tensor.Int64, tensor.Int32, tensor.Int8, tensor.Uint8,
}

// dtype returns the type of the elements; float32 where none is given.
func (o CollectivesOptions) dtype() (tensor.DType, error) {
	name := cmp.Or(o.DType, "float32")
	for _, d := range collectiveDTypes {
		if d.String() == name {
			return d, nil
		}
	}
	return 0, oneOf("dtype", name, CollectiveDTypes())
}

// DefaultBytes are the sizes that are measured if the user gives none: one element,
// 4 KiB, 64 KiB, 1 MiB, 16 MiB, 64 MiB.
func DefaultBytes(dtype string) []int {
	first := 4
	if d, err := (CollectivesOptions{DType: dtype}).dtype(); err == nil {
		first = max(first, d.Size())
	}
	return []int{first, 4096, 65536, 1 << 20, 16 << 20, 64 << 20}
}

// CheckBackend reports a backend that does not exist.
func CheckBackend(name string) error { return oneOf("backend", name, Backends()) }

// CheckTransport reports a transport that does not exist.
func CheckTransport(name string) error { return oneOf("transport", name, Transports()) }

// maxCollectiveBytes bounds a rank's tensor.
const maxCollectiveBytes = 1 << 32

// Validate reports the first option that makes no sense.
func (o CollectivesOptions) Validate() error {
	for _, op := range o.Ops {
		if err := oneOf("operation", op, CollectiveOps()); err != nil {
			return err
		}
	}
	for _, m := range o.Memory {
		if err := oneOf("memory", m, MemoryKinds()); err != nil {
			return err
		}
	}
	dtype, err := o.dtype()
	if err != nil {
		return err
	}
	for _, n := range o.Bytes {
		if n < 1 || n > maxCollectiveBytes || n%dtype.Size() != 0 {
			return fmt.Errorf("%d bytes: want a multiple of %d (%v) up to %d", n, dtype.Size(), dtype, maxCollectiveBytes)
		}
	}
	if o.Reps < 0 || o.Reps > maxSteps {
		return fmt.Errorf("%d calls in a loop: want 1 to %d, or 0 to choose by size", o.Reps, maxSteps)
	}
	if o.LateBy < 0 || o.LateBy > time.Minute {
		return fmt.Errorf("late by %v: want up to a minute", o.LateBy)
	}
	return nil
}

// CheckRanks reports an operation that is not possible with a number of ranks.
func (o CollectivesOptions) CheckRanks(numRanks int) error {
	if numRanks == 1 {
		return errors.New("a collective needs at least 2 ranks")
	}
	if numRanks != 2 && slices.Contains(o.Ops, rawSocketOp) {
		return fmt.Errorf("%s is between 2 ranks, not %d", rawSocketOp, numRanks)
	}
	return nil
}

// Collectives measures collective operations. Every rank of group calls it with the
// same options. The median is over loops: the time of a loop, with a barrier at its
// end, divided by its number of calls. With more ranks than cores, the time of a
// single call on one rank's clock would be misleading. The 99th percentile is of
// single calls on this rank's clock. gb_per_s is the size divided by the time;
// [CollectiveOps] says what the size is.
func Collectives(ctx context.Context, group *dist.Group, o CollectivesOptions, emit func(Result) error) error {
	err := o.Validate()
	if err == nil {
		err = o.CheckRanks(group.Size())
	}
	if err != nil {
		return fmt.Errorf("bench collectives: %w", err)
	}
	dtype, err := o.dtype()
	if err != nil {
		return fmt.Errorf("bench collectives: %w", err)
	}
	for _, bytes := range o.Bytes {
		for i, memory := range o.Memory {
			for _, op := range o.Ops {
				b := &bed{ctx: ctx, group: group, dtype: dtype, memory: memory, bytes: bytes}
				switch {
				case op == barrierOp || op == lateOp:
				case op == rawSocketOp && i > 0: // a socket knows no kinds of memory
				case op == rawSocketOp:
					err = rawSocket(b, o.Reps, emit)
				default:
					err = b.measureOp(op, o.Reps, emit)
				}
				if err != nil {
					return err
				}
			}
		}
	}
	if slices.Contains(o.Ops, barrierOp) {
		b := &bed{ctx: ctx, group: group}
		if err := b.measure(barrierOp, func() error { return group.Barrier(ctx) }, o.Reps, emit); err != nil {
			return err
		}
	}
	if slices.Contains(o.Ops, lateOp) {
		return late(ctx, group, cmp.Or(o.LateBy, 100*time.Millisecond), emit)
	}
	return nil
}

// bed has what the measurement of one case needs.
type bed struct {
	ctx    context.Context
	group  *dist.Group
	dtype  tensor.DType
	memory string
	bytes  int
}

// ones returns a tensor of n ones in the case's kind of memory.
func (b *bed) ones(n int) *tensor.Tensor {
	make := tensor.New
	if b.memory == "shared" {
		make = tensor.NewShared
	}
	t := make(tensor.CPU(), b.dtype, n)
	t.Fill(1)
	return t
}

// measureOp measures one operation of the table.
func (b *bed) measureOp(name string, reps int, emit func(Result) error) error {
	o := operations[slices.IndexFunc(operations, func(o operation) bool { return o.name == name })].setUp(b)
	// The first call maps memory and fills caches. Its result is checked.
	if err := o.call(); err != nil {
		return err
	}
	if o.result != nil {
		for _, at := range []int{0, o.result.NumElems() - 1} {
			if v := o.result.Narrow(0, at, 1).Item(); v != o.want {
				return fmt.Errorf("bench collectives: %s of %d bytes of ones over %d ranks gave %v, want %v", name, b.bytes, b.group.Size(), v, o.want)
			}
		}
	}
	if o.input != nil {
		o.input.Fill(0) // sums stay what they are
	}
	return b.measure(name, o.call, reps, emit)
}

// measure times calls and emits the result.
func (b *bed) measure(name string, call func() error, reps int, emit func(Result) error) error {
	if reps == 0 {
		var err error
		if reps, err = b.loopLength(call); err != nil {
			return err
		}
	}
	loop := func(each func() error) (time.Duration, error) {
		if err := b.group.Barrier(b.ctx); err != nil {
			return 0, err
		}
		start := time.Now()
		for range reps {
			if err := each(); err != nil {
				return 0, err
			}
		}
		err := b.group.Barrier(b.ctx)
		return time.Since(start), err
	}
	var loops, calls times
	for range 3 {
		took, err := loop(call)
		if err != nil {
			return err
		}
		loops = append(loops, took/time.Duration(reps))
	}
	if _, err := loop(func() error {
		start := time.Now()
		err := call()
		calls = append(calls, time.Since(start))
		return err
	}); err != nil {
		return err
	}
	median := loops.median()
	r := b.result(name)
	r.MedianMicros, r.MinMicros = micros(cmp.Or(median, 1)), micros(loops.quantile(0))
	r.P99Micros, r.GBPerSec = micros(calls.quantile(0.99)), perSecond(float64(b.bytes), median)
	return emit(r)
}

// loopLength returns the number of calls in a loop: as many as take about loopTime on
// rank 0's clock, and at least a few. In longer loops the scheduler has time to give
// every rank its own CPU, if there are enough.
func (b *bed) loopLength(call func() error) (int, error) {
	const (
		loopTime = 50 * time.Millisecond
		trials   = 5
	)
	if err := b.group.Barrier(b.ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	for range trials {
		if err := call(); err != nil {
			return 0, err
		}
	}
	if err := b.group.Barrier(b.ctx); err != nil {
		return 0, err
	}
	reps := tensor.New(tensor.CPU(), tensor.Int64, 1)
	reps.Fill(float64(min(20000, max(trials, trials*loopTime/max(1, time.Since(start))))))
	if err := b.group.Broadcast(b.ctx, reps, 0); err != nil {
		return 0, err
	}
	return int(reps.Item()), nil
}

// backendOf returns the name of a group's backend.
func backendOf(g *dist.Group) string {
	if t := g.Transport(); t == "gloo" || t == "mpi" {
		return t
	}
	return "native"
}

// result returns the result of a case, without measurements.
func (b *bed) result(name string) Result {
	r := Result{
		Bench: "collectives", Case: name, Backend: backendOf(b.group), Transport: b.group.Transport(), Memory: b.memory,
		Ranks: b.group.Size(), Bytes: b.bytes,
	}
	if b.dtype.Valid() {
		r.DType = b.dtype.String()
	}
	return r
}
