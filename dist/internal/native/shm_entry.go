// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

const (
	// flatLimit is the largest group in which every rank looks at every other one.
	flatLimit = 16
	// fanOut is how many ranks hang below one in the tree of larger groups.
	fanOut = 16
)

// enter tells all ranks that this one has come to a call, waits until all have come, and
// checks that their calls fit.
//
// In a small group every rank looks at every other one. In a large group that work would
// grow with the square of the ranks. There each rank waits for the ranks right below it in
// a tree, tells that all below have come, and waits until the top tells the same. A
// mismatch that one rank finds reaches the others as a fault.
func (s *Shm) enter(ctx context.Context, c *operation.Call) error {
	seq := uint32(c.Seq)
	s.post(c, entryFlag, seq)
	if s.n <= flatLimit {
		for i := 1; i < s.n; i++ {
			peer := s.after(i)
			if err := s.awaitFlag(ctx, c, peer, entryFlag, seq); err != nil {
				return err
			}
			if err := s.compare(c, peer); err != nil {
				return err
			}
		}
		return nil
	}
	first := s.cfg.Rank*fanOut + 1
	for peer := first; peer < min(first+fanOut, s.n); peer++ {
		if err := s.awaitFlag(ctx, c, peer, belowFlag, seq); err != nil {
			return err
		}
		if err := s.compare(c, peer); err != nil {
			return err
		}
	}
	s.post(c, belowFlag, seq)
	if s.cfg.Rank == 0 {
		return nil
	}
	return s.awaitFlag(ctx, c, 0, belowFlag, seq)
}

// compare checks that a rank that has come has made the same call.
func (s *Shm) compare(c *operation.Call, peer int) error {
	if there := s.call(peer, c.Seq).record.call(c.Seq); !c.Matches(&there) {
		return s.mismatch(c, peer, there)
	}
	return nil
}

// mismatch returns the error of a rank that has called something else.
func (s *Shm) mismatch(c *operation.Call, peer int, there operation.Call) *fault.MismatchError {
	return &fault.MismatchError{Group: s.cfg.Group, Seq: c.Seq,
		Here:  fault.RankCall{Rank: s.cfg.Members[s.cfg.Rank].Rank, Call: *c},
		There: fault.RankCall{Rank: s.cfg.Members[peer].Rank, Call: there}}
}
