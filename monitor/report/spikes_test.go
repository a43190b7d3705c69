// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/monitor/history"
)

// TestSpikes: planted spikes are found where they are, of 20 draws each, and in 100 falling noisy losses without
// any none is, nor where the loss jumps and stays.
func TestSpikes(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	draw := func(plant func(step int, loss float64) float64) []Spike {
		var steps []history.Step
		for i := 1; i <= 1000; i++ {
			loss := 1 + 8*math.Pow(float64(i)+5, -0.5) + 0.1*r.NormFloat64()
			steps = append(steps, history.Step{Step: i, Steps: 1, Time: history.Seconds(i), Loss: history.Number(plant(i, loss)), Seconds: 1})
		}
		return Spikes(steps)
	}
	for range 20 {
		at := []int{100 + r.IntN(300), 500 + r.IntN(400)}
		got := draw(func(step int, loss float64) float64 {
			switch step - at[0] {
			case 0:
				return 2 * loss
			case 1:
				return 3 * loss
			case 2:
				return 1.9 * loss
			}
			if step == at[1] {
				return loss + 1.5
			}
			if step == 50 || step == 900 {
				return math.NaN()
			}
			return loss
		})
		if len(got) != 2 || got[0].Step != at[0]+1 || got[1].Step != at[1] || got[1].Time != history.Seconds(at[1]) || got[0].Usual > got[0].Loss/2 {
			t.Errorf("planted at %v, found %+v", at, got)
		}
	}
	for range 100 {
		if got := draw(func(_ int, loss float64) float64 { return loss }); len(got) != 0 {
			t.Errorf("found %+v in a loss without spikes", got)
		}
	}
	if got := draw(func(step int, loss float64) float64 { return loss + map[bool]float64{true: 1.5}[step >= 500] }); len(got) != 1 || got[0].Step < 500 || got[0].Step > 532 {
		t.Errorf("of a loss that jumps and stays: %+v", got)
	}
}
