// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// sharesSteps is a program in which ranks share the modules of a GPT for three steps. In the second
// one before is called within the pass of each rank.
func sharesSteps(config TPConfig, before func(c *nn.Ctx, rank int)) func(ctx context.Context, g *dist.Group) error {
	s := sharedCase{build: tinyGPT(models.GPTConfig{Vocab: 31}), time: 8, vocab: 31}
	return func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: tensorAxis})
		if err != nil {
			return err
		}
		p, err := Parallelize(ctx, s.build(&nn.Build{Generator: tensor.NewGenerator(7)}), m, Config{TP: config})
		if err != nil {
			return err
		}
		for step := range 3 {
			for _, w := range nn.Parameters(p.Model) {
				w.ZeroGrad()
			}
			_, err := p.Step(ctx, []Microbatch{{
				Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx, s.generator()...) },
				Loss: func(c *nn.Ctx) *tensor.Tensor {
					if step == 1 {
						before(c, g.Rank())
					}
					return s.compute(c, p)
				},
			}})
			if err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		return nil
	}
}

// TestRankLostInTensorParallel: a rank that is killed in any collective of a step, or leaves before
// one, is named by all others within a second.
func TestRankLostInTensorParallel(t *testing.T) {
	const victim = 1
	nothing := func(*nn.Ctx, int) {}
	check := func(t *testing.T, res *disttest.Result, since time.Duration) {
		t.Helper()
		for r, rank := range res.Ranks {
			if r == victim {
				continue
			}
			var lost *dist.RankError
			if !errors.As(rank.Err, &lost) || lost.Rank != victim || !strings.Contains(rank.Err.Error(), "step ") {
				t.Errorf("rank %d ended with %v, want an error of a step that names rank %d", r, rank.Err, victim)
			}
			if late := rank.Ended - since; late > time.Second {
				t.Errorf("rank %d ended %v after rank %d was lost", r, late, victim)
			}
		}
		if t.Failed() {
			t.Log(res)
		}
	}
	for _, config := range []TPConfig{{}, wholeSequence, {Pieces: 2}} {
		for _, ranks := range []int{2, 4} {
			name := fmt.Sprintf("%+v %d", config, ranks)
			whole := disttest.Run(t, ranks, sharesSteps(config, nothing))
			if err := whole.Err(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			setUp, last := 0, 0
			for _, c := range whole.Calls {
				if last = max(last, c.Number); c.Op == "broadcast" {
					setUp = max(setUp, c.Number)
				}
			}
			numbers := map[string][]int{} // of the victim's calls in the last two steps, by operation
			for _, c := range whole.Calls {
				if c.Rank == victim && c.Number > (setUp+last)/2 {
					numbers[c.Op] = append(numbers[c.Op], c.Number)
				}
			}
			if config.WholeSequence == (len(numbers["reduce_scatter"]) > 0) || len(numbers["all_reduce"]) == 0 {
				t.Fatalf("%s: rank %d makes the calls %v", name, victim, numbers)
			}
			for op, of := range numbers {
				slices.Sort(of)
				var some []int
				for i := range 4 { // forward and backward
					some = append(some, of[i*(len(of)-1)/3])
				}
				for _, number := range slices.Compact(some) {
					t.Run(fmt.Sprintf("%s %s %d", name, op, number), func(t *testing.T) {
						res := disttest.Run(t, ranks, sharesSteps(config, nothing), disttest.WithFaults(disttest.Kill(victim).AtCall(victim, number)))
						if len(res.Faults) != 1 {
							t.Fatalf("%d faults have happened, want 1", len(res.Faults))
						}
						check(t, res, res.Faults[0].At)
					})
				}
			}
			t.Run(name+" leaves", func(t *testing.T) {
				broken := errors.New("no more")
				res := disttest.Run(t, ranks, sharesSteps(config, func(c *nn.Ctx, rank int) {
					if rank == victim {
						c.Fail(broken)
					}
				}))
				if err := res.Ranks[victim].Err; !errors.Is(err, broken) {
					t.Errorf("the victim ended with %v", err)
				}
				check(t, res, res.Ranks[victim].Ended)
			})
		}
	}
}
