// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
)

// pipeVictim is the rank that is killed.
const pipeVictim = 1

// stepsOf is a program that takes three steps of a pipeline. In the second one at is called with each
// action of the victim.
func stepsOf(name string, n int, at func(ctx context.Context, a schedule.Action) error) func(ctx context.Context, g *dist.Group) error {
	k := chainTask("")
	k.model = longer(k.model)
	return func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: pipelineAxis})
		if err != nil {
			return err
		}
		p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Schedule: name, Example: k.example}})
		if err != nil {
			return err
		}
		for step := range 3 {
			p.pipe.watch = nil
			if step == 1 && g.Rank() == pipeVictim {
				p.pipe.watch = func(a schedule.Action) func(time.Duration) {
					if err := at(ctx, a); err != nil {
						panic(err)
					}
					return func(time.Duration) {}
				}
			}
			for _, w := range nn.Parameters(p.Model) {
				w.ZeroGrad()
			}
			if _, err := p.Step(ctx, k.microbatches(p, step, n)); err != nil {
				return err
			}
		}
		return nil
	}
}

// longer returns models of twice as many blocks.
func longer(model func() any) func() any {
	return func() any {
		m, more := model().(*chain), model().(*chain)
		m.Blocks = append(m.Blocks, more.Blocks...)
		return m
	}
}

// TestRankKilledInAPipeline: a rank that is killed in any phase of a step of any schedule is named by
// all others, within a second.
func TestRankKilledInAPipeline(t *testing.T) {
	nothing := func(context.Context, schedule.Action) error { return nil }
	for _, name := range schedule.Names() {
		for _, ranks := range []int{2, 4} {
			n := 2 * ranks
			// The calls of the victim, without a fault.
			whole := disttest.Run(t, ranks, stepsOf(name, n, nothing))
			if err := whole.Err(); err != nil {
				t.Fatal(err)
			}
			phases := map[string]func() (func(ctx context.Context, a schedule.Action) error, []disttest.Option){}
			sch, err := schedule.New(name, ranks, 0, n)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []schedule.Kind{schedule.Forward, schedule.Backward, schedule.BackwardInput, schedule.BackwardWeight} {
				var of []schedule.Action
				for _, a := range sch.Ranks[pipeVictim] {
					if a.Kind == kind {
						of = append(of, a)
					}
				}
				if len(of) > 0 {
					phases[kind.String()] = func() (func(ctx context.Context, a schedule.Action) error, []disttest.Option) {
						return func(ctx context.Context, a schedule.Action) error {
							if a != of[len(of)/2] {
								return nil
							}
							return disttest.Inject(ctx, disttest.Kill(pipeVictim))
						}, nil
					}
				}
			}
			for _, op := range []string{"send", "recv"} {
				var numbers []int
				for _, c := range whole.Calls {
					if c.Rank == pipeVictim && c.Op == op {
						numbers = append(numbers, c.Number)
					}
				}
				slices.Sort(numbers)
				if len(numbers) == 0 {
					t.Fatalf("%s: rank %d makes no %s: %v", name, pipeVictim, op, whole.Calls)
				}
				phases[op] = func() (func(ctx context.Context, a schedule.Action) error, []disttest.Option) {
					return nothing, []disttest.Option{disttest.WithFaults(disttest.Kill(pipeVictim).AtCall(pipeVictim, numbers[len(numbers)/2]))}
				}
			}
			for phase, make := range phases {
				if ranks == 4 && phase != "F" && phase != "recv" {
					continue
				}
				t.Run(fmt.Sprintf("%s %d %s", name, ranks, phase), func(t *testing.T) {
					at, opts := make()
					res := disttest.Run(t, ranks, stepsOf(name, n, at), opts...)
					if len(res.Faults) != 1 {
						t.Fatalf("%d faults have happened, want 1", len(res.Faults))
					}
					for r, rank := range res.Ranks {
						if r == pipeVictim {
							continue
						}
						var lost *dist.RankError
						if !errors.As(rank.Err, &lost) || lost.Rank != pipeVictim {
							t.Errorf("rank %d ended with %v, want an error that names rank %d", r, rank.Err, pipeVictim)
						}
						if late := rank.Ended - res.Faults[0].At; late > time.Second {
							t.Errorf("rank %d ended %v after rank %d was killed", r, late, pipeVictim)
						}
					}
				})
			}
		}
	}
}
