// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

// TestDesertedForAReason: of a rank that has left because the group has failed, the reason is
// told, also where both have come between the beginning of a call and its first look at who
// has left.
func TestDesertedForAReason(t *testing.T) {
	cfg := Config{Group: "test", Key: "test", Members: members(3), Rank: 1}
	m := &Mesh{cfg: cfg, n: 3, left: map[int]bool{0: true}}
	m.star = newStar(&m.cfg, func(int, uint32, string) {}, func(int) {})
	m.star.asks.parting[0] = collective.Doing{State: collective.DoingFailed, Key: collective.KeyNumber("test"), Call: collective.Call{Op: collective.OpBarrier, Seq: 2}}
	c := collective.Call{Op: collective.OpReduce, Seq: 3}
	var other *collective.RankError
	if err := m.anyDeserted(&c); !errors.Is(err, collective.ErrLeft) {
		t.Errorf("a rank that has left: %v", err)
	}
	m.fault = &meshFault{rank: 2, kind: kindDied}
	for what, err := range map[string]error{"a collective": m.anyDeserted(&c), "another wait": m.Trouble(c)} {
		if !errors.As(err, &other) || other.Rank != 2 || !errors.Is(err, collective.ErrDied) {
			t.Errorf("%s does not say why it has left: %v", what, err)
		}
	}
}
