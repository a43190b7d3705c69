// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/monitor/history"
)

// TestGoodput: the times of all processes of a run are added up, and the rank is named for which
// others waited.
func TestGoodput(t *testing.T) {
	ranks := func(step int, forward, waiting history.Column, late history.Column, slow *history.Slow) history.Ranks {
		return history.Ranks{Step: step, Steps: 10, Time: history.Seconds(100 + step), Seconds: 10, Phases: map[string]history.Column{"forward": forward, "waiting": waiting}, Hidden: history.Column{1, 1}, Late: late, Slow: slow}
	}
	h := &history.History{
		Runs: []history.Run{{Time: 90, Ranks: 2}, {Time: 140, FirstStep: 10, Ranks: 2}},
		Ranks: []history.Ranks{
			ranks(10, history.Column{9, 10}, history.Column{1, 0}, history.Column{0, 1}, nil),
			ranks(20, history.Column{7, 10}, history.Column{3, 0}, history.Column{0, 3}, &history.Slow{Rank: 1, Share: 0.3, Why: "it computes longer"}),
		},
		Lost: []history.Lost{{Time: 140, Step: 10, Until: 14, Last: 130, Seconds: 4, Times: 1}},
	}
	g := goodputOf(h)
	if g.Seconds != 40 || g.Phases["forward"] != 36 || g.Phases["waiting"] != 4 || g.Hidden != 4 || g.ByRank[0]["waiting"] != 4 || g.ByRank[1]["forward"] != 20 || g.Again != 4 || g.Stopped != 10 {
		t.Errorf("got %+v", g)
	}
	if f := g.For; f == nil || f.Rank != 1 || math.Abs(f.Share-0.2) > 1e-12 || f.Why != "it computes longer" {
		t.Errorf("got %+v", g.For)
	}
	var b strings.Builder
	if err := Text(&b, []Run{{Name: "out", History: h}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ranks' time compute 90.0 %, waiting 10.0 %\n", "late        rank 1: the others wait 20.0 % of their time for it; it computes longer\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
	if goodputOf(&history.History{Runs: h.Runs}) != nil {
		t.Error("a history without times has a goodput")
	}
}
