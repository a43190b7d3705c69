// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Spike is a loss that lies far above those before it.
type Spike struct {
	Step  int             `json:"step"` // the last of the record with the largest loss
	Time  history.Seconds `json:"time"`
	Loss  history.Number  `json:"loss"`
	Usual history.Number  `json:"usual"` // the median of the records before
}

// A loss is a spike if it is above the median of the last spikeWindow records by more than spikeSpread standard
// deviations (of a normal distribution with as wide a middle half), and by more than a twentieth of the median.
const (
	spikeWindow = 64
	spikeLeast  = 32 // records before the first that can be one
	spikeSpread = 8
	spikePart   = 0.05
	maxSpikes   = 200 // the last ones
)

// Spikes lists the spikes of the loss. Neighbours are one, and losses of a spike are not among those that later
// ones are compared with. After half a window above, the loss has another level, and nothing before is compared
// with.
func Spikes(steps []history.Step) []Spike {
	all := []Spike{}
	w := medianWindow{}
	var open *Spike
	long := 0
	for _, s := range steps {
		if !s.Loss.IsFinite() {
			continue
		}
		loss := float64(s.Loss)
		low, middle, high := w.quartiles()
		isSpike := len(w.sorted) >= spikeLeast && loss > middle+spikeSpread*(high-low)/1.349 && loss > middle+spikePart*max(middle, -middle)
		if isSpike && long == spikeWindow/2 { // it is no spike any more: what was before says nothing
			w, open, long, isSpike = medianWindow{}, nil, 0, false
		}
		if isSpike {
			long++
			if open == nil {
				all = append(all, Spike{Usual: history.Number(middle)})
				open = &all[len(all)-1]
			}
			if open.Step == 0 || s.Loss > open.Loss {
				open.Step, open.Time, open.Loss = s.Step, s.Time, s.Loss
			}
			continue
		}
		open, long = nil, 0
		w.add(loss)
	}
	return all[max(0, len(all)-maxSpikes):]
}

// medianWindow has the last numbers, also in their order.
type medianWindow struct{ last, sorted []float64 }

func (w *medianWindow) add(v float64) {
	if len(w.last) == spikeWindow {
		i, _ := slices.BinarySearch(w.sorted, w.last[0])
		w.sorted = slices.Delete(w.sorted, i, i+1)
		w.last = w.last[1:]
	}
	w.last = append(w.last, v)
	i, _ := slices.BinarySearch(w.sorted, v)
	w.sorted = slices.Insert(w.sorted, i, v)
}

// quartiles returns the numbers above a quarter, a half and three quarters of all.
func (w *medianWindow) quartiles() (low, middle, high float64) {
	n := len(w.sorted)
	if n == 0 {
		return 0, 0, 0
	}
	return w.sorted[n/4], w.sorted[n/2], w.sorted[(3*n)/4]
}
