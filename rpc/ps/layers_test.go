// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// Layers on servers, without data parallelism among the workers, give the losses of DDP of
// two ranks, bit for bit, or nearly with Adagrad: on one and three servers, beside embeddings on them.
func TestLayersEqualDDP(t *testing.T) {
	const workers, numSteps, seed = 2, 5, 9
	near := map[string]float64{rows.Adagrad: 1e-5} // optim.Adagrad rounds otherwise than by rows
	adam := func(p []*nn.Parameter) interface{ Step(*tensor.Tensor) } {
		return optim.NewAdam(p, optim.AdamOptions{LR: 0.02})
	}
	for kind, o := range map[string]struct {
		server rows.Optimizer
		local  func(p []*nn.Parameter) interface{ Step(*tensor.Tensor) }
	}{rows.SGD: optimizers[rows.SGD], rows.Adagrad: optimizers[rows.Adagrad], rows.Adam: {rows.Optimizer{Kind: rows.Adam, LR: 0.02}, adam}} {
		run := func(c *cluster) (losses [workers][]float64) {
			var clients []*Client
			if c != nil {
				m, tables := recommender()
				for _, p := range LayerWeights(m) {
					s := LayerTable(p)
					s.Optimizer = o.server
					tables = append(tables, s)
				}
				for w := range workers {
					clients = append(clients, c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, workers, Synchronous()), WithTables(tables...)))
				}
			}
			err := dist.Spawn(t.Context(), workers, func(ctx context.Context, g *dist.Group) error {
				m, _ := recommender()
				weights, dense := EmbeddingWeights(m), LayerWeights(m)
				var model nn.ModuleN = m
				var layers *Layers
				var around nn.Interceptor
				if c == nil {
					ddp, err := parallel.NewDDP(ctx, m, g)
					if err != nil {
						return err
					}
					model = ddp
				} else {
					client := clients[g.Rank()]
					tables, err := Attach(m, client)
					if err != nil {
						return err
					}
					around = tables
					if layers, err = NewLayers(m, client); err != nil {
						return err
					}
					if g.Rank() == 0 {
						if err := layers.Put(ctx); err != nil {
							return err
						}
					} else {
						for _, p := range dense { // they come from the servers
							p.Data().Fill(7)
						}
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
				}
				local := []interface{ Step(*tensor.Tensor) }{optim.NewSGD(weights, optim.SGDOptions{LR: 1e-3}), o.local(dense)}
				for step := range numSteps {
					for _, p := range nn.Parameters(m) {
						p.ZeroGrad()
					}
					if layers != nil {
						if err := layers.Pull(ctx); err != nil {
							return err
						}
					}
					in := batch(seed, g.Rank(), step)
					loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
						if around != nil {
							c = c.With(around)
						}
						y := c.CallN(model, in...)[0]
						if around != nil { // as DDP divides
							return y.Mul(y).Mean().MulScalar(1.0 / workers)
						}
						return y.Mul(y).Mean()
					})
					if err != nil {
						return err
					}
					if layers == nil {
						for _, s := range local {
							s.Step(nil)
						}
					} else {
						loss *= workers
						if err := layers.Add(1); err != nil {
							return err
						}
						if err := clients[g.Rank()].Step(ctx); err != nil {
							return err
						}
					}
					losses[g.Rank()] = append(losses[g.Rank()], loss)
				}
				return nil
			}, dist.WithDeterministic())
			if err != nil {
				t.Fatal(err)
			}
			return losses
		}
		want := run(nil)
		for _, servers := range []int{1, 3} {
			got := run(start(t, servers))
			for w := range want {
				for i := range want[w] {
					if math.Abs(got[w][i]-want[w][i]) > near[kind]*math.Abs(want[w][i]) {
						t.Errorf("%s, %d servers, worker %d: the losses are %v, those of DDP %v", kind, servers, w, got[w], want[w])
					}
				}
			}
		}
	}
}

func TestLayersRefuse(t *testing.T) {
	c := start(t, 1)
	m := nn.NewLinear(&nn.Build{}, 3, 2)
	other := rows.Schema{Name: "weight", Rows: 3, Width: 3}
	client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(other))
	if _, err := NewLayers(m, client); KindOf(err) != KindTable {
		t.Errorf("a table of other sizes: %v", err)
	}
	layers, err := NewLayers(nn.NewLinear(&nn.Build{}, 3, 3), client)
	if err != nil {
		t.Fatal(err)
	}
	for what, states := range map[string][]*tensor.Tensor{"no states": nil, "a state of other sizes": {tensor.Zeros(2, 2)}} {
		if err := layers.Insert(t.Context(), states); KindOf(err) != KindValues {
			t.Errorf("%s: Insert gave %v", what, err)
		}
		if err := layers.Lookup(t.Context(), states); KindOf(err) != KindValues {
			t.Errorf("%s: Lookup gave %v", what, err)
		}
	}
	if _, err := NewLayers(&nn.ReLU{}, client); KindOf(err) != KindTable {
		t.Errorf("a model without parameters: %v", err)
	}
}
