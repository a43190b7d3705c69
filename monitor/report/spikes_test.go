// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/rand/v2"
	"strings"
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

// TestEnvironmentsDiffer: what differs between the environments of runs is told of those that have one.
func TestEnvironmentsDiffer(t *testing.T) {
	h := &history.History{Runs: []history.Run{{}}}
	runs := []Run{
		{History: h, Environment: map[string]string{"go.version": "1.26", "cpu.model": "a"}}, {History: h},
		{History: h, Environment: map[string]string{"go.version": "1.25", "cpu.model": "a"}},
	}
	got := Differences(runs)
	if len(got) != 1 || got[0].Name != "go.version (environment)" || got[0].Values[0] != "1.26" || got[0].Values[2] != "1.25" {
		t.Errorf("got %+v", got)
	}
	if got := Differences(runs[:2]); len(got) != 0 {
		t.Errorf("of one environment: %+v", got)
	}
}

// TestInTurns: where ranks wait for each other in turns, none is called slow, unless they have named one.
func TestInTurns(t *testing.T) {
	h := &history.History{Runs: []history.Run{{Ranks: 2, Steps: 10}}, Steps: []history.Step{{Step: 10, Steps: 10, Seconds: 10}}}
	r := history.Ranks{Step: 10, Steps: 10, Time: 10, Seconds: 10, Phases: map[string]history.Column{"forward": {8.2, 7.2}, "waiting": {1.8, 2.8}}, Late: history.Column{2.8, 1.8}}
	h.Ranks = []history.Ranks{r}
	if v := Verdicts(h)[3]; v.Answer != "nobody in particular" || v.State != Look || !strings.Contains(v.Why, "wait 23.0 % of their time for each other, in turns") {
		t.Errorf("got %+v", v)
	}
	r.Slow = &history.Slow{Rank: 1, Share: 0.2, Why: "it computes longer"}
	h.Ranks[0] = r
	if v := Verdicts(h)[3]; v.Answer != "rank 1" || !strings.HasSuffix(v.Why, "it computes longer") {
		t.Errorf("got %+v", v)
	}
}

// TestSlowerNow: the answer about speed says that the last steps take longer, and not where they do not.
func TestSlowerNow(t *testing.T) {
	for _, slow := range []float64{1, 1.3} {
		h := &history.History{Runs: []history.Run{{Steps: 200}}}
		for i := 1; i <= 200; i++ {
			s := history.Step{Step: i, Steps: 1, Time: history.Seconds(float64(i) / 10), Loss: history.Number(300 - i), Seconds: 0.1}
			if i > 150 {
				s.Seconds *= slow
			}
			h.Steps = append(h.Steps, s)
		}
		v := Verdicts(h)[2]
		if told := v.Answer == "now 130 ms a step, 30 % slower" && strings.Contains(v.Why, "usually 100 ms a step"); told != (slow > 1) || (v.State == Look) != told {
			t.Errorf("of steps %v times as long: %+v", slow, v)
		}
	}
}
