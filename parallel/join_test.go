// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// unevenRun is training in which ranks have unlike numbers of steps, and of samples in them.
type unevenRun struct {
	ranks     int
	rows      [][]int // [rank][step]: samples, of both epochs one after the other
	epochs    [2][]int
	optimizer string
	sparse    bool
	keep      bool // gradients are not dropped between steps
	passes    int  // of a step; all but the last under NoSync
	opts      []DDPOption
	hook      bool
}

func drawUneven(r *rand.Rand) unevenRun {
	u := unevenRun{ranks: 2 + r.IntN(7), optimizer: pick(r, "sgd", "adamw"), passes: 1 + r.IntN(2), keep: chance(r, 0.2)}
	u.sparse = u.optimizer == "sgd" && !u.keep && chance(r, 0.3)
	for epoch := range 2 {
		for range u.ranks {
			u.epochs[epoch] = append(u.epochs[epoch], r.IntN(5))
		}
	}
	weighted := chance(r, 0.5)
	for rank := range u.ranks {
		var rows []int
		for range u.epochs[0][rank] + u.epochs[1][rank] {
			n := 4
			if weighted {
				n = 1 + r.IntN(6)
			}
			rows = append(rows, n)
		}
		u.rows = append(u.rows, rows)
	}
	if u.hook = chance(r, 0.3); u.hook {
		u.opts = append(u.opts, WithHook(HookFunc(meanHook)))
	}
	return u
}

// meanHook is what a DDP does without a hook.
func meanHook(ctx context.Context, g *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
	b.Buffer.Scale(1 / float64(g.Size()))
	return b.Buffer, g.AllReduce(ctx, b.Buffer, dist.Sum)
}

// samples are those that a rank has in a pass of a step.
func (u unevenRun) samples(epoch, rank, step, pass int) (ids, targets []int64) {
	n := u.rows[rank][epoch*u.epochs[0][rank]+step]
	for i := range n {
		at := int64(rank*131 + step*17 + epoch*7 + pass*3 + i*i + i)
		ids, targets = append(ids, at%numIDs), append(targets, (at*at+at/3)%classes)
	}
	return ids, targets
}

// model is the model of the run.
func (u unevenRun) model(seed int64) *toy {
	m := newToy(seed, width)
	m.Tokens.Weight.Sparse = u.sparse
	return m
}

// alone trains one rank on all samples, and returns the weights after each epoch.
func (u unevenRun) alone(ctx context.Context) (after [2][]float32, err error) {
	m := u.model(0)
	opt := optimizers[u.optimizer](nn.Parameters(m))
	for epoch, lengths := range u.epochs {
		opt.ZeroGrad() // as Join does at its end
		for step := range slices.Max(lengths) {
			if !u.keep {
				opt.ZeroGrad()
			}
			for pass := range u.passes {
				var ids, targets []int64
				for rank, length := range lengths {
					if step < length {
						a, b := u.samples(epoch, rank, step, pass)
						ids, targets = append(ids, a...), append(targets, b...)
					}
				}
				if _, err := backward(ctx, m, tensor.FromInt64(ids), tensor.FromInt64(targets)); err != nil {
					return after, err
				}
			}
			opt.Step(nil)
		}
		after[epoch] = snapshot(m)[3:] // without Seen
	}
	return after, nil
}

// onRank trains one rank of several.
func (u unevenRun) onRank(ctx context.Context, g *dist.Group) (after [2][]float32, err error) {
	m := u.model(int64(g.Rank()))
	d, err := NewDDP(ctx, m, g, append(u.opts, small, WithJoin())...)
	if err != nil {
		return after, err
	}
	opt := optimizers[u.optimizer](nn.Parameters(m))
	for epoch, lengths := range u.epochs {
		err := d.Join(ctx, func() error {
			for step := range lengths[g.Rank()] {
				if !u.keep {
					opt.ZeroGrad()
				}
				for pass := range u.passes {
					ids, targets := u.samples(epoch, g.Rank(), step, pass)
					if err := d.Weigh(float64(len(ids))); err != nil {
						return err
					}
					run := func() error {
						_, err := backward(ctx, d, tensor.FromInt64(ids), tensor.FromInt64(targets))
						return err
					}
					var err error
					if pass < u.passes-1 {
						err = d.NoSync(run)
					} else {
						err = run()
					}
					if err != nil {
						return err
					}
				}
				opt.Step(nil)
			}
			return nil
		}, WithJoinedStep(func(context.Context) error { opt.Step(nil); return nil }))
		if err != nil {
			return after, err
		}
		after[epoch] = snapshot(m)[3:]
	}
	return after, nil
}

// TestJoinEqualsOneRank: ranks whose data end at random steps train as one rank does on all
// samples. The second epoch shows that the optimizers have the same state.
func TestJoinEqualsOneRank(t *testing.T) {
	t.Parallel()
	seed := seeded.Of(t)
	for i := range 24 {
		u := drawUneven(rand.New(rand.NewPCG(seed, uint64(i))))
		want, err := u.alone(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make([][2][]float32, u.ranks)
		err = spawn(t, u.ranks, func(ctx context.Context, g *dist.Group) (err error) {
			got[g.Rank()], err = u.onRank(ctx, g)
			return err
		})
		if err != nil {
			t.Fatalf("draw %d: %+v: %v", i, u, err)
		}
		for epoch := range 2 {
			for rank := range u.ranks {
				if !slices.Equal(got[rank][epoch], got[0][epoch]) {
					t.Errorf("draw %d, epoch %d: rank %d has other weights than rank 0: %+v", i, epoch, rank, u)
				}
			}
			off := 0.0
			for k, w := range want[epoch] {
				off = max(off, float64(max(w-got[0][epoch][k], got[0][epoch][k]-w)))
			}
			limit := 2e-5
			if u.optimizer == "adamw" {
				limit = 1e-3 // which is a fifth of one step: signs of small gradients
			}
			if !(off < limit) {
				t.Errorf("draw %d, epoch %d: the weights are off by %.1e: %+v", i, epoch, off, u)
			}
		}
	}
}

// TestJoinWithoutSteps: what the joined ranks do not step, they get at the end, with the buffers.
func TestJoinWithoutSteps(t *testing.T) {
	digests := make([]string, 4)
	err := spawn(t, 4, func(ctx context.Context, g *dist.Group) error {
		m := newToy(int64(g.Rank()), width)
		d, err := NewDDP(ctx, m, g, small, WithJoin())
		if err != nil {
			return err
		}
		opt := optimizers["sgd"](nn.Parameters(m))
		in := newBatches(g.Rank(), g.Size(), 4)
		err = d.Join(ctx, func() error {
			for range []int{2, 0, 5, 5}[g.Rank()] {
				opt.ZeroGrad()
				ids, targets := in.next()
				if _, err := backward(ctx, d, ids, targets); err != nil {
					return err
				}
				opt.Step(nil)
				m.Seen.Data.Fill(float64(10*g.Rank() + 5))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if seen := m.Seen.Data.Float32s()[0]; seen != 25 {
			return fmt.Errorf("rank %d has the buffer %v, which is not rank 2's", g.Rank(), seen)
		}
		digests[g.Rank()] = digest(m)
		// Without a Join, the ranks train on as ever.
		ids, targets := in.next()
		_, err = backward(ctx, d, ids, targets)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(digests)) != 1 {
		t.Errorf("digests of the ranks' states: %v", digests)
	}
}

// TestWrongJoins: each mistake is an error of every rank, and nobody waits.
func TestWrongJoins(t *testing.T) {
	one := func(ctx context.Context, d *DDP, g *dist.Group, n int) error {
		in := newBatches(g.Rank(), g.Size(), 4)
		for range n {
			ids, targets := in.next()
			if _, err := backward(ctx, d, ids, targets); err != nil {
				return err
			}
		}
		return nil
	}
	joined := func(ctx context.Context, d *DDP, g *dist.Group, n int, opts ...JoinOption) error {
		return d.Join(ctx, func() error { return one(ctx, d, g, n) }, opts...)
	}
	for name, c := range map[string]struct {
		opts func(rank int) []DDPOption
		run  func(ctx context.Context, d *DDP, g *dist.Group) error
		says string
	}{
		"the option on one rank": {
			opts: func(rank int) []DDPOption {
				if rank == 1 {
					return []DDPOption{WithJoin()}
				}
				return nil
			},
			says: "rank 0 has no option where rank 1 has WithJoin()",
		},
		"no option": {run: func(ctx context.Context, d *DDP, g *dist.Group) error { return joined(ctx, d, g, g.Rank()) }, says: "needs the option WithJoin"},
		"outside on one rank": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin()} },
			run: func(ctx context.Context, d *DDP, g *dist.Group) error {
				if g.Rank() == 1 {
					return one(ctx, d, g, 3)
				}
				return joined(ctx, d, g, 3-g.Rank()) // rank 2 has one step
			},
			says: "rank 0 trains in a Join and rank 1 outside of one",
		},
		"outside, when others have ended": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin(), WithHook(HookFunc(meanHook))} },
			run: func(ctx context.Context, d *DDP, g *dist.Group) error {
				if g.Rank() == 0 {
					return one(ctx, d, g, 3)
				}
				return joined(ctx, d, g, 0)
			},
			says: "rank 1 trains in a Join and rank 0 outside of one",
		},
		"an early end": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin()} },
			run: func(ctx context.Context, d *DDP, g *dist.Group) error {
				err := joined(ctx, d, g, []int{3, 1, 2}[g.Rank()], WithErrorOnEarlyEnd())
				if e := (*EarlyEndError)(nil); !errors.As(err, &e) || e.Ended != 1 || e.Rank != g.Rank() {
					return fmt.Errorf("not an EarlyEndError: %w", err)
				}
				return err
			},
			says: "rank 1 has no more inputs",
		},
		"SyncBuffers": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin()} },
			run: func(ctx context.Context, d *DDP, g *dist.Group) error {
				return d.Join(ctx, func() error { return d.SyncBuffers(ctx) })
			},
			says: "SyncBuffers in a Join",
		},
		"a weight": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin()} },
			run:  func(_ context.Context, d *DDP, _ *dist.Group) error { return d.Weigh(0) },
			says: "must be a number above 0",
		},
		"weight that would travel as zero": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin()} },
			run:  func(_ context.Context, d *DDP, _ *dist.Group) error { return d.Weigh(1e-60) },
			says: "in which it travels",
		},
		"weight that would travel as infinity": {
			opts: func(int) []DDPOption { return []DDPOption{WithJoin()} },
			run:  func(_ context.Context, d *DDP, _ *dist.Group) error { return d.Weigh(1e60) },
			says: "in which it travels",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
				var opts []DDPOption
				if c.opts != nil {
					opts = c.opts(g.Rank())
				}
				d, err := NewDDP(ctx, newToy(0, width), g, opts...)
				if err == nil {
					err = c.run(ctx, d, g)
				}
				if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
					return fmt.Errorf("rank %d gets %v", g.Rank(), err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWeightsTravelInABucket: a step of a DDP with Join sends one number a rank more.
func TestWeightsTravelInABucket(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		var sent [2]int64
		for i, opts := range [][]DDPOption{{small}, {small, WithJoin()}} {
			d, err := NewDDP(ctx, newToy(0, width), g, opts...)
			if err != nil {
				return err
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			before := g.Traffic()
			ids, targets := newBatches(g.Rank(), g.Size(), 4).next()
			if _, err := backward(ctx, d, ids, targets); err != nil {
				return err
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			sent[i] = g.Traffic().Since(before).SentBytes
		}
		if sent[1]-sent[0] != 2*4 {
			return fmt.Errorf("%d bytes are sent without Join, %d with it", sent[0], sent[1])
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
