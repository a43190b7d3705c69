// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// stepsWithStraggler makes steps in which one rank takes longer until all know
// it, and returns after how many that was. Three ranks, or more.
func stepsWithStraggler(ctx context.Context, g *Group, marked bool, most int, fast, slow time.Duration) (steps int, skew []RankSkew, err error) {
	x := private(tensor.Float32, 1000)
	knows := number(0)
	for steps = 1; steps <= most; steps++ {
		pause := fast
		if g.Rank() == 1 {
			pause = slow
		}
		time.Sleep(pause)
		if err := g.AllReduce(ctx, x, Sum); err != nil {
			return 0, nil, err
		}
		knows.Fill(0)
		if skew = g.Skew(); len(skew) > 0 && skew[1].Share > 0.1 {
			knows.Fill(1)
		}
		if err := g.AllReduce(ctx, knows, Min); err != nil {
			return 0, nil, err
		}
		if marked {
			g.StepEnded()
		}
		if knows.Item() == 1 {
			return steps, skew, nil
		}
	}
	return 0, nil, fmt.Errorf("rank %d does not find rank 1 late in %d steps: %+v", g.Rank(), most, g.Skew())
}

// TestSkew slows one rank down by 30 %: every rank knows it, in 14 steps where
// the machine has nothing else to do. Where other ranks are late, too, by some
// milliseconds, longer steps are tried.
func TestSkew(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			var err error
			for _, fast := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
				err = tr.run(t.Context(), 3, func(ctx context.Context, g *Group) error { return findStraggler(ctx, g, fast) })
				if err == nil {
					return
				}
				t.Log(err)
			}
			t.Error(err)
		})
	}
}

func findStraggler(ctx context.Context, g *Group, fast time.Duration) error {
	steps, skew, err := stepsWithStraggler(ctx, g, true, 50, fast, fast*13/10)
	if err != nil {
		return err
	}
	if len(skew) != g.Size() {
		return fmt.Errorf("Skew has %d rows: %+v", len(skew), skew)
	}
	for r, row := range skew {
		if row.Rank != r || r != 1 && row.Share > skew[1].Share/2 || row.Step < fast {
			return fmt.Errorf("after %d steps rank %d is %+v, rank 1 %+v", steps, r, row, skew[1])
		}
	}
	return nil
}

// TestSkewInVirtualTime: the figures are exact where nothing else takes time,
// with steps that are marked, and with none.
func TestSkewInVirtualTime(t *testing.T) {
	for _, marked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			err := Spawn(t.Context(), 4, func(ctx context.Context, g *Group) error {
				if g.Skew() != nil {
					return fmt.Errorf("ranks are late before they have begun: %+v", g.Skew())
				}
				most := 20
				if !marked {
					most = 40
				}
				_, skew, err := stepsWithStraggler(ctx, g, marked, most, 100*time.Millisecond, 130*time.Millisecond)
				if err != nil {
					return err
				}
				// Two collectives a step.
				want := RankSkew{Rank: 1, Late: 15 * time.Millisecond, Share: 30.0 / 130, Step: 130 * time.Millisecond}
				if !marked {
					want.Step /= 2
				}
				if g.Rank() == 0 && (skew[1].Rank != 1 || skew[1].Late != want.Late || skew[1].Step != want.Step || skew[1].Share < want.Share-1e-6 || skew[1].Share > want.Share+1e-6) {
					return fmt.Errorf("marked %t: rank 1 is %+v, want %+v", marked, skew[1], want)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSkewOfAGroupMadeLater: groups of some ranks know who is late in them.
func TestSkewOfAGroupMadeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
			if g.Rank() == 1 {
				return nil
			}
			sub, err := g.NewGroup(ctx, []int{2, 0})
			if err != nil {
				return err
			}
			_, _, err = stepsWithStraggler(ctx, sub, true, 30, time.Second, 1300*time.Millisecond)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
