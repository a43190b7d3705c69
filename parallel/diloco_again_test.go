// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/tensor"
)

// TestStoreOfAnOlderRun: a run from nothing, in a store that has the exchanges of a run before, does
// not take those for its own.
func TestStoreOfAnOlderRun(t *testing.T) {
	t.Parallel()
	a := &archipelago{t: t, store: store.NewMemory(), islands: 2, steps: 8, options: DiLoCoOptions{Every: 4}}
	a.options.Islands.Silence = 200 * time.Millisecond
	for run := range 2 {
		for i, e := range a.all() {
			if run == 0 && e.err != nil {
				t.Fatalf("island %d: %v", i, e.err)
			}
			if run == 1 && (e.err == nil || !strings.Contains(e.err.Error(), "an older run")) {
				t.Errorf("island %d ends after %d exchanges with %v", i, e.stats.Exchanges, e.err)
			}
		}
	}
}

// TestIslandsResumeApart: islands whose checkpoints are of different exchanges meet in a new store.
// The one behind takes the state of the other.
func TestIslandsResumeApart(t *testing.T) {
	t.Parallel()
	states := [2]map[string]*tensor.Tensor{{}, {}}
	a := &archipelago{t: t, store: store.NewMemory(), islands: 2, steps: 12, options: DiLoCoOptions{Every: 2, NoDelay: true}}
	a.options.Islands.Silence = 400 * time.Millisecond
	var found [2]*DiLoCo
	a.from = func(island int, d *DiLoCo, _ *toy) { found[island] = d }
	a.each = func(island, step int) error {
		if step == []int{7, 3}[island] {
			d := found[island]
			if err := d.Settle(t.Context()); err != nil {
				return err
			}
			for _, s := range d.OuterState() {
				states[island][s.Name] = s.Tensor.Clone()
			}
			for _, s := range d.StateDict() {
				states[island]["model "+s.Name] = s.Tensor.Clone()
			}
		}
		return nil
	}
	for i, e := range a.all() {
		if e.err != nil {
			t.Fatalf("island %d: %v", i, e.err)
		}
	}
	a.store, a.each = store.NewMemory(), nil
	a.options.Islands.Patience = 5 * time.Second
	a.from = func(island int, d *DiLoCo, _ *toy) {
		for _, s := range d.OuterState() {
			s.Tensor.CopyFrom(states[island][s.Name])
		}
		for _, s := range d.StateDict() {
			s.Tensor.CopyFrom(states[island]["model "+s.Name])
		}
		d.Resumed()
	}
	// Both end with the exchange that comes 3 after the first one together: island 0 alone could be
	// done before island 1 has asked for its state.
	a.steps = 0
	var last atomic.Int64
	a.took = func(x Exchange) {
		if len(x.Members) == 2 {
			last.CompareAndSwap(0, int64(x.Number)+4)
		}
	}
	a.enough = func(next int) bool { return last.Load() > 0 && int64(next) >= last.Load() }
	a.change = func(_ int, o *DiLoCoOptions) { o.Islands.Keep = 1 << 16 } // steps take no time here, and island 0 does not wait
	begun := time.Now()
	ends := a.all()
	for i, e := range ends {
		if e.err != nil {
			t.Errorf("island %d: %v", i, e.err)
		}
		t.Log(e.rounds)
		if e.digest != ends[0].digest {
			t.Errorf("island %d ends with other parameters than island 0", i)
		}
		for _, x := range e.rounds {
			if len(x.Late) > 0 {
				t.Errorf("island %d: exchange %d waited in vain for %v", i, x.Number, x.Late)
			}
		}
	}
	t.Log(time.Since(begun))
}
