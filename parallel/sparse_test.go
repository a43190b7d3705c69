// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// clicks is a small recommender: two tables of bags and a head.
type clicks struct {
	Users, Items *nn.EmbeddingBag
	Head         *nn.Linear
	tied         bool // uses Items whole too
}

func newClicks(seed int64, sparse bool) *clicks {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	o := nn.EmbeddingBagOptions{Sparse: sparse}
	return &clicks{Users: nn.NewEmbeddingBag(b, 50, 4, o), Items: nn.NewEmbeddingBag(b, 40, 4, o), Head: nn.NewLinear(b, 4, 3)}
}

// Forward leaves Items alone where the first id is odd, as another part of a
// batch may.
func (m *clicks) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Users, ids)
	if ids.Int64s()[0]%2 == 0 {
		x = x.Mul(c.Call(m.Items, ids))
	}
	if m.tied {
		x = x.Add(c.Param(m.Items.Weight).Sum())
	}
	return c.Call(m.Head, x)
}

// ofRank returns bags of a rank, of another size in each.
func ofRank(rank, step int) (ids, targets *tensor.Tensor) {
	n := 3 + rank
	list := make([]int64, 2*n)
	for i := range list {
		list[i] = int64((rank + step + i*i*7) % 40)
	}
	return tensor.FromInt64(list, n, 2), tensor.FromInt64(slices.Repeat([]int64{1}, n))
}

// rowsOrGrads returns every gradient, those by rows as dense ones.
func rowsOrGrads(m *clicks) map[string][]float32 {
	out := gradients(m)
	for _, p := range nn.Parameters(m) {
		if g := p.RowGrad(); g != nil {
			out[p.Name()] = g.Dense().Float32s()
		}
	}
	return out
}

// Gradients by rows under DDP are those of the dense tables, the same bits on
// every rank, with accumulation and without.
func TestSparseGradientsAreSummed(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		for _, mode := range []string{"", "no sync", "kept"} {
			t.Run(strings.TrimSpace(fmt.Sprint(n, " ", mode)), func(t *testing.T) {
				run := func(sparse bool) []map[string][]float32 {
					grads := make([]map[string][]float32, n)
					err := spawn(t, n, func(ctx context.Context, g *dist.Group) error {
						m := newClicks(int64(g.Rank()), sparse)
						ddp, err := NewDDP(ctx, m, g, small)
						if err != nil {
							return err
						}
						pass := func(step int) error {
							ids, targets := ofRank(g.Rank(), step)
							_, err := backward(ctx, ddp, ids, targets)
							return err
						}
						switch mode {
						case "no sync":
							err = ddp.NoSync(func() error { return pass(1) })
						case "kept":
							err = pass(1)
						}
						if err != nil {
							return err
						}
						if err := pass(0); err != nil {
							return err
						}
						if m.Users.Weight.Sparse != (m.Users.Weight.Grad() == nil) {
							return fmt.Errorf("sparse %v, dense gradient %v", m.Users.Weight.Sparse, m.Users.Weight.Grad())
						}
						grads[g.Rank()] = rowsOrGrads(m)
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					return grads
				}
				sparse, dense := run(true), run(false)
				for rank := range n {
					if !sameBits(sparse[rank], sparse[0]) {
						t.Errorf("rank %d has other gradients than rank 0", rank)
					}
				}
				if off, where := difference(t, sparse[0], dense[0]); !(off < 1e-6) {
					t.Errorf("the gradient of %s is off by %.1e from the dense one", where, off)
				}
			})
		}
	}
}

// A table that is used whole has a gradient that cannot travel by rows, and every
// rank says so.
func TestSparseTableUsedWhole(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newClicks(0, true)
		m.tied = g.Rank() == 1
		ddp, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		ids, targets := ofRank(0, 0)
		_, err = backward(ctx, ddp, ids, targets)
		if err == nil || !strings.Contains(err.Error(), "items.weight is sparse, but rank 1 has used it whole") {
			return fmt.Errorf("rank %d: %v", g.Rank(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A parameter that has become sparse would be in a bucket and by rows at once.
func TestSparseAfterNewDDP(t *testing.T) {
	err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
		for _, before := range []bool{true, false} {
			m := newClicks(0, before)
			ddp, err := NewDDP(ctx, m, g)
			if err != nil {
				return err
			}
			m.Users.Weight.Sparse = !before
			ids, targets := ofRank(0, 0)
			if _, err := backward(ctx, ddp, ids, targets); err == nil || !strings.Contains(err.Error(), "users.weight was") {
				return fmt.Errorf("sparse before %v: %v", before, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
