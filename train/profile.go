// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/monitor/trace"
)

// profileRows is how many operations of a trace are told; the file has more.
const profileRows = 10

// newProfiler returns what traces the steps that the options name; nil for none.
func (r *trainer[B]) newProfiler() *trace.Profiler {
	if r.o.Profile == "" {
		return nil
	}
	from, to, err := trace.ParseSteps(r.o.Profile)
	if err != nil { // resolve has looked
		return nil
	}
	if last := r.o.Steps; to > last || from <= r.step {
		r.report.Notice(fmt.Sprintf("no trace of steps %s is written: this process does steps %d to %d", r.o.Profile, r.step+1, last))
		return nil
	}
	return trace.New(r.axes.World, trace.Options{From: from, To: to, Dir: r.o.Out, FLOPs: r.rates.FLOPs, Bytes: r.rates.Bytes})
}

// endProfiled ends a step of the trace. After the last one it says what was written.
func (r *trainer[B]) endProfiled(ctx context.Context) error {
	t, err := r.profiler.End(ctx, r.step)
	if unwritten := (*trace.WriteError)(nil); errors.As(err, &unwritten) {
		r.report.Notice(err.Error())
		return nil
	}
	if err != nil {
		return r.errorf("after step %d: %w", r.step, err)
	}
	if t == nil {
		return nil
	}
	text := fmt.Sprintf("%s has the trace of steps %s for ui.perfetto.dev, %s what operations cost; these cost most:\n%s", t.File, r.o.Profile, t.CostsFile, t.Table(profileRows))
	if t.Lost > 0 {
		text = fmt.Sprintf("%d operations or events of the trace did not fit; ", t.Lost) + text
	}
	r.report.Notice(text)
	return nil
}
