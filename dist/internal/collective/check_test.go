// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"strings"
	"testing"
)

// TestCheckRefusesWhatNeverRuns: what waits for more receives than a plan has would
// never be done, and nobody would say so.
func TestCheckRefusesWhatNeverRuns(t *testing.T) {
	one := Range{Hi: 1}
	plan := func() Plan {
		return Plan{NumOut: 1, Work: 1, Recvs: []Recv{{Range: Range{1, 2}, From: 1}},
			Steps: []Step{{Range: one, From: 1, Num: 1, After: 1}}, Sends: []Send{{Range: one, To: 1, After: 1}}}
	}
	p := plan()
	if err := p.Check(0, 2, 4); err != nil {
		t.Errorf("a plan that runs: %v", err)
	}
	p.Steps[0].After = 2
	if err := p.Check(0, 2, 4); err == nil || !strings.Contains(err.Error(), "step 0 after 2 of 1 receives") {
		t.Errorf("a step after two of one receives: %v", err)
	}
	p = plan()
	p.Sends[0].After = 2
	if err := p.Check(0, 2, 4); err == nil || !strings.Contains(err.Error(), "send 0") {
		t.Errorf("a send after two of one receives: %v", err)
	}
}
