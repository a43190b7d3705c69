// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// TestWaitOnANewLinkKeepsNobodyWaiting has rank 2 of a plan send to rank 0 and
// wait for rank 1, which never comes, on a link that nobody has opened: rank 0
// gets what is for it, and rank 2 alone misses rank 1.
func TestWaitOnANewLinkKeepsNobodyWaiting(t *testing.T) {
	ranks := tcpPlanners(t, 3)
	one := collective.Range{Hi: 1}
	plans := []*collective.Plan{
		0: {NumOut: 1, Recvs: []collective.Recv{{Range: one, From: 2, Culprit: 2}}},
		2: {NumOut: 1, Sends: []collective.Send{{Range: one, To: 0}}, Recvs: []collective.Recv{{Range: one, From: 1, Culprit: 1}}},
	}
	run := func(rank int) error {
		ctx, cancel := context.WithTimeout(t.Context(), min(loaded.Allow(500*time.Millisecond), 3*time.Second)) // in which rank 0 gets its part
		defer cancel()
		c := operation.Call{Op: operation.Broadcast, DType: operation.Uint8, Count: 1, Seq: 1}
		return ranks[rank].run(ctx, &c, plans[rank], nil, make([]byte, 1))
	}
	waiting := make(chan error, 1)
	go func() { waiting <- run(2) }()
	if err := run(0); err != nil {
		t.Errorf("rank 0, to which rank 2 sends: %v", err)
	}
	var late *fault.TimeoutError
	if err := <-waiting; !errors.As(err, &late) || len(late.Missing) != 1 || late.Missing[0].Rank != 1 {
		t.Errorf("rank 2, to which rank 1 does not: %v; want a time-out that misses rank 1", err)
	}
	for _, r := range ranks {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
