// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	lateBytes = 1 << 20
	numLate   = 5 // times that rank 0 comes late
)

// late measures the cost of waiting: rank 0 comes late to an all-reduce and to a
// barrier. The time is that of rank 0 in the call. The others have been waiting for
// long, so that it includes the time in which they wake up. wait_cpu_us is the
// processor time that a waiting process spends in the call: the median over the
// trials, of the rank that spends most.
func late(ctx context.Context, group *dist.Group, by time.Duration, emit func(Result) error) error {
	x := tensor.NewShared(tensor.CPU(), tensor.Float32, lateBytes/4)
	x.Fill(0)
	for _, c := range []struct {
		bed  bed
		name string
		call func() error
	}{
		{bed{bytes: lateBytes, dtype: tensor.Float32, memory: "shared"}, "late_all_reduce", func() error { return group.AllReduce(ctx, x, dist.Sum) }},
		{bed{}, "late_barrier", func() error { return group.Barrier(ctx) }},
	} {
		c.bed.ctx, c.bed.group = ctx, group
		if err := c.call(); err != nil { // maps memory
			return err
		}
		var took, spent times
		for range numLate {
			if err := group.Barrier(ctx); err != nil {
				return err
			}
			if group.Rank() == 0 {
				time.Sleep(by)
			}
			before, start := readUsage(), time.Now()
			if err := c.call(); err != nil {
				return err
			}
			took = append(took, time.Since(start))
			spent = append(spent, time.Duration(readUsage().since(before).cpuSeconds*float64(time.Second)))
		}
		mine := tensor.New(tensor.CPU(), tensor.Float64, 1)
		mine.Fill(micros(spent.median()))
		all := tensor.New(tensor.CPU(), tensor.Float64, group.Size())
		if err := group.AllGather(ctx, all, mine); err != nil {
			return err
		}
		r := c.bed.result(c.name)
		r.MedianMicros, r.MinMicros = micros(max(1, took.median())), micros(max(1, took.quantile(0)))
		for rank := 1; rank < group.Size(); rank++ {
			r.WaitCPUMicros = max(r.WaitCPUMicros, all.Narrow(0, rank, 1).Item())
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}
