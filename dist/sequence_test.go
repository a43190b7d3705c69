// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// sequence is a random program on overlapping groups: every rank plays the
// steps of the groups that it is in, in the same order, with work in flight on
// all of them.
type sequence struct {
	seed  uint64
	sets  [][]int // the groups: ranks of the world
	steps []step
}

type step struct {
	group int    // of sets
	do    choice // what the group does
	// join has all work ended before the step, renew the group closed and
	// made anew.
	join, renew bool
}

// inFlight are the operations that begin without an end in a sequence: those
// with an asynchronous form whose messages nobody else may take.
var inFlight = []string{"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_list", "broadcast",
	"broadcast_coalesced", "all_gather", "all_gather_list", "gather", "scatter", "all_to_all", "all_to_all_single", "batch", "barrier"}

func newSequence(seed uint64, numRanks, numSteps int) sequence {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := sequence{seed: seed}
	all := make([]int, numRanks)
	for r := range all {
		all[r] = r
	}
	s.sets = append(s.sets, all)
	for range 3 {
		set := rng.Perm(numRanks)[:1+rng.IntN(numRanks)]
		s.sets = append(s.sets, set)
	}
	sizes := factorSizes()
	for range numSteps {
		st := step{group: rng.IntN(len(s.sets)), join: rng.IntN(12) == 0, renew: rng.IntN(20) == 0}
		for f := range st.do {
			st.do[f] = rng.IntN(sizes[f])
		}
		st.do[byCount] = rng.IntN(slices.Index(numElems, 4097) + 1)
		s.steps = append(s.steps, st)
	}
	return s
}

// play plays a rank's part.
func (s sequence) play(ctx context.Context, world *Group) error {
	groups := make([]*Group, len(s.sets))
	groups[0] = world
	for i, set := range s.sets[1:] {
		if slices.Contains(set, world.Rank()) {
			var err error
			if groups[i+1], err = world.NewGroup(ctx, set); err != nil {
				return err
			}
		}
	}
	var flying sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i, st := range s.steps {
		g := groups[st.group]
		if g == nil {
			continue
		}
		if st.join || st.renew {
			flying.Wait()
		}
		if st.renew && st.group > 0 {
			if err := g.Barrier(ctx); err != nil { // nobody needs it any more
				return fmt.Errorf("step %d: %w", i, err)
			}
			if err := g.Close(); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			var err error
			if g, err = world.NewGroup(ctx, s.sets[st.group]); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			groups[st.group] = g
		}
		c := st.do.one(g.Size())
		if !c.async || !slices.Contains(inFlight, c.op.name) {
			if c.op.name == "recv_any" { // would take what is in flight
				flying.Wait()
				if err := g.Barrier(ctx); err != nil {
					return fmt.Errorf("step %d: %w", i, err)
				}
			}
			if err := c.run(ctx, g); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			continue
		}
		begun := make(chan struct{})
		c.started = sync.OnceFunc(func() { close(begun) })
		flying.Go(func() {
			defer c.started()
			if err := c.run(ctx, g); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("step %d: %w", i, err))
				mu.Unlock()
			}
		})
		<-begun
	}
	flying.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return world.Barrier(ctx)
}

// TestSequences plays random sequences of collectives and messages on
// overlapping groups, from -seed on.
func TestSequences(t *testing.T) {
	t.Parallel()
	first, num := *caseSeed, uint64(4)
	if testing.Short() {
		num = 1
	}
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			for i := range num {
				seed := first + i
				numRanks := 2 + int(seed%4)
				s := newSequence(seed, numRanks, 60)
				if err := tr.run(t.Context(), numRanks, s.play); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}
