// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"testing"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// TestDesertedForAReason: of a rank that has left because the group has failed, the reason is
// told, also where both have come between the beginning of a call and its first look at who
// has left.
func TestDesertedForAReason(t *testing.T) {
	cfg := Config{Group: "test", Key: "test", Members: members(3), Rank: 1}
	m := &Mesh{cfg: cfg, n: 3, left: map[int]bool{0: true}}
	m.star = newStar(&m.cfg, func(int, uint32, string) {}, func(int) {})
	m.star.asks.parting[0] = fault.Doing{State: fault.DoingFailed, Key: collective.KeyNumber("test"), Call: operation.Call{Op: operation.Barrier, Seq: 2}}
	c := operation.Call{Op: operation.Reduce, Seq: 3}
	var other *fault.RankError
	if err := m.anyDeserted(&c); !errors.Is(err, fault.ErrLeft) {
		t.Errorf("a rank that has left: %v", err)
	}
	m.fault = &meshFault{rank: 2, kind: kindDied}
	for what, err := range map[string]error{"a collective": m.anyDeserted(&c), "another wait": m.Trouble(c)} {
		if !errors.As(err, &other) || other.Rank != 2 || !errors.Is(err, fault.ErrDied) {
			t.Errorf("%s does not say why it has left: %v", what, err)
		}
	}
}
