// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/internal/peak"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/tensor"
)

// longRun is for how long the ranks train before those of a machine that is not known are measured, which
// takes a third of a second: short runs do without.
const longRun = 20 * time.Second

// findRates looks how fast the threads of this rank are at best. A trace needs the rates, so then a machine
// that is not known is measured now. Ranks that compute elsewhere than on the CPU are not measured.
func (r *trainer[B]) findRates(ctx context.Context) {
	if len(r.devices) != 1 || r.devices[0] != tensor.CPU() {
		return
	}
	if r.o.Profile != "" {
		r.measureRates(ctx)
		return
	}
	r.rates, _ = peak.Known(envvar.Cache.Get(""), r.o.DType, tensor.NumThreads())
}

// measureRates measures the threads if need be, and returns the floating-point operations in a second. Rates
// that cannot be had are no reason not to train.
func (r *trainer[B]) measureRates(ctx context.Context) float64 {
	if len(r.devices) == 1 && r.devices[0] == tensor.CPU() {
		r.rates, _ = peak.Of(ctx, envvar.Cache.Get(""), r.o.DType, tensor.NumThreads())
	}
	return r.rates.FLOPs
}

// trained adds the time of a window, which is the same on all ranks. After a long run, the ranks that do not
// know their peak measure it together.
func (l *ledger) trained(ctx context.Context, window time.Duration) {
	if l.measure == nil {
		return
	}
	if l.time += window; l.time < longRun {
		return
	}
	if l.peak == 0 {
		l.peak = l.measure(ctx)
	}
	l.measure = nil
}

// keepPeak has the machine's file say what the steps of this rank have reached, if that is more.
func (r *trainer[B]) keepPeak() {
	if best := r.ledger.fastest; best > r.rates.FLOPs && r.rates.IsKnown() {
		_ = peak.Reached(envvar.Cache.Get(""), r.o.DType, tensor.NumThreads(), best) // else it is measured again some day
	}
}

// noteWork has a record say what products the ranks computed.
func noteWork(record *history.Ranks, cuts []event.Cut) {
	known := false
	for _, c := range cuts {
		record.GFLOP = append(record.GFLOP, float64(c.Held.FLOPs-c.Held.Again)/1e9)
		record.Again = append(record.Again, float64(c.Held.Again)/1e9)
		record.Peak = append(record.Peak, math.Round(c.Held.Peak/1e6)/1e3)
		known = known || c.Held.Peak > 0
	}
	if !known {
		record.Peak = nil
	}
}

// groupOp is an operation in a group of ranks.
type groupOp struct{ group, op string }

// usedLinks returns what this rank's calls came to since it was last asked: those that took longest.
func (l *ledger) usedLinks() []history.Link {
	var out []history.Link
	now := map[groupOp]event.OpFigures{}
	for _, g := range l.stream.Figures().Channels {
		for _, op := range g.Ops {
			key := groupOp{g.Name, op.Op}
			now[key] = op.OpFigures
			was := l.links[key]
			if op.Calls <= was.Calls || op.Bytes <= was.Bytes {
				continue
			}
			link := history.Link{Group: g.Name, Ranks: g.Ranks, Op: op.Op, Calls: op.Calls - was.Calls, Bytes: op.Bytes - was.Bytes, Seconds: (op.Running - was.Running).Seconds()}
			if op.Fastest > 0 {
				link.Best = math.Round(float64(op.Largest) / op.Fastest.Seconds())
			}
			out = append(out, link)
		}
	}
	l.links = now
	slices.SortStableFunc(out, func(a, b history.Link) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return out[:min(len(out), history.MaxLinks)]
}
