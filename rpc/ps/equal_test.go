// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// recommender is the DLRM of the tests, whose tables have the first values of schemas.
func recommender() (*models.DLRM, []rows.Schema) {
	m := models.NewDLRM(&nn.Build{Generator: tensor.NewGenerator(3)}, models.DLRMConfig{Tables: []int{40, 9, 25}, Width: 4, Bottom: []int{3, 4}, Top: []int{5, 1}, Sparse: true})
	var tables []rows.Schema
	for _, p := range EmbeddingWeights(m) {
		s := TableOf(p)
		s.Init = rows.Init{Kind: rows.Uniform, Scale: 0.3, Seed: 11}
		tables = append(tables, s)
		first := make([]float32, s.Width)
		for k := range p.Data().Dim(0) {
			s.First(first, int64(k))
			p.Data().Select(0, k).CopyFrom(tensor.FromFloat32(first))
		}
	}
	return m, tables
}

// batch is what a rank feeds in a step, with bags of 0 to 3 ids.
func batch(seed int64, rank, step int) []*tensor.Tensor {
	g := tensor.NewGenerator(seed + int64(1000*rank+step))
	const size = 6
	dense := tensor.Zeros(size, 3)
	g.Normal(dense, 0, 1)
	in := []*tensor.Tensor{dense}
	for _, numRows := range []int{40, 9, 25} {
		var ids, offsets []int64
		for range size {
			offsets = append(offsets, int64(len(ids)))
			for range int(g.Float64() * 4) {
				ids = append(ids, int64(g.Float64()*float64(numRows)))
			}
		}
		in = append(in, tensor.FromInt64(ids, len(ids)), tensor.FromInt64(offsets))
	}
	return in
}

// optimizers are pairs of a server's and the local one.
var optimizers = map[string]struct {
	server rows.Optimizer
	local  func(p []*nn.Parameter) interface{ Step(*tensor.Tensor) }
}{
	rows.SGD: {rows.Optimizer{Kind: rows.SGD, LR: 0.5}, func(p []*nn.Parameter) interface{ Step(*tensor.Tensor) } {
		return optim.NewSGD(p, optim.SGDOptions{LR: 0.5})
	}},
	rows.Adagrad: {rows.Optimizer{Kind: rows.Adagrad, LR: 0.1}, func(p []*nn.Parameter) interface{ Step(*tensor.Tensor) } {
		return optim.NewAdagrad(p, optim.AdagradOptions{LR: 0.1})
	}},
	rows.LazyAdam: {rows.Optimizer{Kind: rows.LazyAdam, LR: 0.02}, func(p []*nn.Parameter) interface{ Step(*tensor.Tensor) } {
		return optim.NewSparseAdam(p, optim.SparseAdamOptions{LR: 0.02})
	}},
}

// train trains the recommender on the ranks of a group, and returns the losses of the rank.
// If client is not nil, its tables lie on servers.
func train(ctx context.Context, g *dist.Group, kind string, seed int64, numSteps int, client *Client) (losses []float64, m *models.DLRM, err error) {
	m, _ = recommender()
	weights := EmbeddingWeights(m)
	var tables *Attached
	if client != nil {
		if tables, err = Attach(m, client); err != nil {
			return nil, nil, err
		}
	}
	model, err := parallel.NewDDP(ctx, m, g)
	if err != nil {
		return nil, nil, err
	}
	var dense []*nn.Parameter
	for _, p := range nn.Parameters(m) {
		if !slices.Contains(weights, p) {
			dense = append(dense, p)
		}
	}
	steppers := []interface{ Step(*tensor.Tensor) }{optim.NewSGD(dense, optim.SGDOptions{LR: 0.1})}
	if client == nil {
		steppers = append(steppers, optimizers[kind].local(weights))
	}
	for step := range numSteps {
		for _, p := range nn.Parameters(m) {
			p.ZeroGrad()
		}
		in := batch(seed, g.Rank(), step)
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			if tables != nil {
				c = c.With(tables)
			}
			y := c.CallN(model, in...)[0]
			return y.Mul(y).Mean()
		})
		if err != nil {
			return nil, nil, err
		}
		for _, s := range steppers {
			s.Step(nil)
		}
		if client != nil {
			if err := client.Step(ctx); err != nil {
				return nil, nil, err
			}
		}
		losses = append(losses, loss)
	}
	return losses, m, nil
}

// Synchronous servers give the bits of the local run: of one rank, and of data parallelism
// with sums in the order of the ranks. Losses and all rows are compared.
func TestSynchronousEqualsLocal(t *testing.T) {
	seed := int64(seeded.Of(t) % (1 << 40))
	const numSteps = 6
	for kind := range optimizers {
		for _, workers := range []int{1, 2, 3, 4} {
			want := make([][]float64, workers)
			var local *models.DLRM
			err := dist.Spawn(t.Context(), workers, func(ctx context.Context, g *dist.Group) error {
				l, m, err := train(ctx, g, kind, seed, numSteps, nil)
				want[g.Rank()] = l
				if g.Rank() == 0 {
					local = m
				}
				return err
			}, dist.WithDeterministic())
			if err != nil {
				t.Fatal(err)
			}
			for _, servers := range []int{1, 2, 3, 4} {
				t.Run(fmt.Sprintf("%s/%d workers/%d servers", kind, workers, servers), func(t *testing.T) {
					c := start(t, servers)
					_, tables := recommender()
					for i := range tables {
						tables[i].Optimizer = optimizers[kind].server
					}
					clients := make([]*Client, workers)
					for w := range clients {
						clients[w] = c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, workers, Synchronous()), WithTables(tables...))
					}
					got := make([][]float64, workers)
					err := dist.Spawn(t.Context(), workers, func(ctx context.Context, g *dist.Group) (err error) {
						got[g.Rank()], _, err = train(ctx, g, kind, seed, numSteps, clients[g.Rank()])
						return err
					}, dist.WithDeterministic())
					if err != nil {
						t.Fatal(err)
					}
					for w := range got {
						for i := range got[w] {
							if math.Float64bits(got[w][i]) != math.Float64bits(want[w][i]) {
								t.Fatalf("worker %d, step %d: the loss is %v, the local run's is %v", w, i, got[w][i], want[w][i])
							}
						}
					}
					for i, p := range EmbeddingWeights(local) {
						keys := make([]int64, p.Data().Dim(0))
						for k := range keys {
							keys[k] = int64(k)
						}
						r, err := clients[0].Pull(t.Context(), Request{Table: tables[i].Name, Keys: keys})
						if err != nil {
							t.Fatal(err)
						}
						here, there := r[0].Float32s(), p.Data().Float32s()
						for j := range here {
							if math.Float32bits(here[j]) != math.Float32bits(there[j]) {
								t.Fatalf("table %s: value %d is %v, locally %v", p.Name(), j, here[j], there[j])
							}
						}
					}
				})
			}
		}
	}
}

func TestAttachRefuses(t *testing.T) {
	c := start(t, 1)
	_, tables := recommender()
	tables[1].Width = 5
	client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(tables...))
	m, _ := recommender()
	if _, err := Attach(m, client); KindOf(err) != KindTable || !strings.Contains(err.Error(), tables[1].Name) {
		t.Errorf("attach to a table of another width: %v", err)
	}
	if len(EmbeddingWeights(m)) != 3 {
		t.Error("a refused Attach has taken weights out of the model")
	}
	if _, err := Attach(nn.NewLinear(&nn.Build{}, 1, 1), client); KindOf(err) != KindTable {
		t.Errorf("attach to a model without embeddings: %v", err)
	}
}
