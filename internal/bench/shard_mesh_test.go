// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
	"time"
)

// TestParseMesh: strategies that are meshes, and those that are none.
func TestParseMesh(t *testing.T) {
	for _, c := range []struct {
		text  string
		ranks int
		want  map[string]int // or
		wrong string
	}{
		{"tp", 4, map[string]int{"tp": 4}, ""},
		{"fsdp2.tp2", 4, map[string]int{"fsdp": 2, "tp": 2}, ""},
		{"fsdp2.tp", 8, map[string]int{"fsdp": 2, "tp": 4}, ""},
		{"pp2:zbv.ep2.cp1", 4, map[string]int{"pp": 2, "ep": 2, "cp": 1}, ""},
		{"zeus", 2, nil, `no strategy "zeus": want one of single, dp, ddp, zero1, fsdp, hsdp, diloco:H, or a mesh of pp, replicate, fsdp, ep, cp, tp such as fsdp2.tp2 or pp:zbv`},
		{"fspd2.tp2", 4, nil, `no strategy "fspd2.tp2", did you mean fsdp? Want one of`},
		{"tp2.tp2", 4, nil, `strategy "tp2.tp2" names the axis tp twice`},
		{"tp0", 4, nil, `strategy "tp0": the axis tp has the size 0: want 1 or more`},
		{"tp.fsdp", 4, nil, `strategy "tp.fsdp" leaves out the sizes of tp and fsdp: leave out one at most`},
		{"tp:1f1b", 4, nil, `strategy "tp:1f1b": the axis tp has no schedule`},
		{"pp:1f1", 4, nil, `strategy "pp:1f1": schedule: there is no schedule "1f1", did you mean "1f1b"?`},
		{"fsdp2.tp2", 2, nil, "fsdp 2 × tp 2 = 2 ranks: the product is 4; change the sizes or --ranks"},
		{"fsdp3.tp", 4, nil, "fsdp 3 × tp ? = 4 ranks: 4 % 3 = 1; change the sizes or --ranks"},
	} {
		m, err := parseMesh(c.text)
		if err == nil {
			err = m.fit(c.ranks)
		}
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s for %d ranks: %v, want %s", c.text, c.ranks, err, c.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s for %d ranks: %v", c.text, c.ranks, err)
			continue
		}
		for _, axis := range meshAxes {
			if want := max(1, c.want[axis]); m.size(axis) != want {
				t.Errorf("%s for %d ranks: %s has %d ranks, want %d", c.text, c.ranks, axis, m.size(axis), want)
			}
		}
	}
}

// TestPredictStep: times that can be checked by hand.
func TestPredictStep(t *testing.T) {
	of := passTimes{forward: 40, backward: 80, update: 16}
	for _, c := range []struct {
		text   string
		ranks  int
		passes int
		want   time.Duration
		bubble float64
	}{
		{"tp", 2, 1, 60 + 8, 0},
		{"fsdp2.cp2", 4, 3, 180 + 8, 0},
		{"ep", 2, 2, 240 + 16, 0},
		{"pp:1f1b", 2, 4, (4+1)*60 + 8, 0.2},
		{"pp2:zbv.tp2", 4, 4, (4*6+1)*5 + 4, 0.04},
	} {
		m, err := parseMesh(c.text)
		if err == nil {
			err = m.fit(c.ranks)
		}
		if err != nil {
			t.Fatal(err)
		}
		step, bubble, err := m.predictStep(of, c.passes)
		if err != nil || step != c.want || bubble < c.bubble-1e-9 || bubble > c.bubble+1e-9 {
			t.Errorf("%s: a step takes %d with bubble %g, want %d with %g (%v)", c.text, step, bubble, c.want, c.bubble, err)
		}
	}
	m := &strategyMesh{sizes: map[string]int{"pp": 4}, schedule: "1f1b"}
	if _, _, err := m.predictStep(of, 3); err == nil || !strings.Contains(err.Error(), "3 < 4") {
		t.Errorf("%v", err)
	}
}
