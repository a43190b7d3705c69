// SPDX-License-Identifier: Apache-2.0

package disttest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// Causes in the errors of ranks that a fault has ended, to be found with
// errors.Is.
var (
	// ErrKilled is the cause of a rank that was killed.
	ErrKilled = errors.New("disttest: the rank was killed")
	// ErrStopped is the cause of a rank that was still stopped when all others
	// had ended.
	ErrStopped = errors.New("disttest: the rank was stopped until all others had ended")
)

// Run calls main for each of n ranks, which form a group over a virtual network in virtual time. It
// returns when all have ended. The ranks' errors are in the result and do not fail the test, for they may
// be what the test wants. Run must not be called inside a bubble of testing/synctest; see [Simulate].
func Run(t *testing.T, n int, main func(ctx context.Context, g *dist.Group) error, opts ...Option) *Result {
	t.Helper()
	o, err := newOptions(n, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("disttest: %d ranks, seed %d: WithSeed(%d) plays this run again", n, o.seed, o.seed)
	prepare()
	var res *Result
	synctest.Test(t, func(t *testing.T) { res = newCluster(t.Context(), n, o).run(main) })
	return res
}

// Simulate is [Run] without a test: in virtual time inside a bubble of testing/synctest, in real time
// outside of one. A program that uses bubbles must call [tensor.CPU] before the first of them, for the
// threads of the tensor library belong to the bubble in which they are started.
func Simulate(ctx context.Context, n int, main func(ctx context.Context, g *dist.Group) error, opts ...Option) (*Result, error) {
	o, err := newOptions(n, opts)
	if err != nil {
		return nil, err
	}
	return newCluster(ctx, n, o).run(main), nil
}

// prepare makes what must not be made inside a bubble.
func prepare() { tensor.CPU() }

// Inject makes faults happen in the run of a main function; ctx is main's context. Times count from the
// beginning of the run, and a fault without a time happens at once.
func Inject(ctx context.Context, faults ...Fault) error {
	c, ok := ctx.Value(clusterKey{}).(*cluster)
	if !ok {
		return errors.New("disttest: Inject wants the context that a run gives to main")
	}
	for _, f := range faults {
		if err := f.check(len(c.ranks)); err != nil {
			return err
		}
	}
	for _, f := range faults {
		c.plan(f)
	}
	return nil
}

type clusterKey struct{}
