// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/internal/peak"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/tensor"
)

// measureRates returns how fast the threads of this rank are at best. A machine that is not known yet is
// measured, which takes a third of a second: the caller does so before the first step. Ranks that compute
// elsewhere than on the CPU are not measured. Rates that cannot be had are no reason not to train.
func (r *trainer[B]) measureRates(ctx context.Context) peak.Rates {
	if len(r.devices) != 1 || r.devices[0] != tensor.CPU() {
		return peak.Rates{}
	}
	rates, _ := peak.Of(ctx, "", r.o.DType, tensor.NumThreads())
	return rates
}

// keepPeak has the machine's file say what the steps of this rank have reached, if that is more.
func (r *trainer[B]) keepPeak() {
	if best := r.ledger.fastest; best > r.rates.FLOPs && r.rates.IsKnown() {
		_ = peak.Reached("", r.o.DType, tensor.NumThreads(), best) // else it is measured again some day
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
