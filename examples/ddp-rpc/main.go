// SPDX-License-Identifier: Apache-2.0

// Command ddp-rpc trains a model that is spread in two ways. Two trainers each have a
// copy of its dense part and average the gradients (DDP). Its table of embeddings is
// too large for copies. It exists once, in a third process, and the trainers read and
// update the rows that they need.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	trainers = 2 // ranks 0 and 1; rank 2 has the table
	steps    = 301
	batch    = 64

	films = 200 // rows of the table
	width = 16
	seen  = 7 // films of one person

	tableLR, denseLR = 5, 0.1 // a row is used by few samples of a batch
)

// TheTable returns a reference to the table, which all trainers share.
var TheTable = rpc.NewMethod[struct{}, *rpc.RRef[nn.Module]]("table")

// newTable returns the part of the model that exists once. Its gradients contain only
// the rows that a batch has used.
func newTable() nn.Module {
	return nn.NewEmbeddingBag(&nn.Build{}, films, width, nn.EmbeddingBagOptions{Mode: tensor.BagSum, Sparse: true})
}

// newDense returns the part of which each trainer has a copy.
func newDense() nn.Module {
	b := &nn.Build{}
	return nn.NewSequential(nn.NewLinear(b, width, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 2))
}

// people draws the films that people have seen, [batch, seen], and whether they would
// like another film. They like it if most of their films are of one kind. The model has
// to learn which films are of that kind.
func people(g *tensor.Generator) (ids, labels *tensor.Tensor) {
	was, likes := make([]int64, 0, batch*seen), make([]int64, batch)
	for i := range likes {
		kind := 0
		for range seen {
			film := int64(g.Float64() * films)
			was = append(was, film)
			kind += int(film * 7919 % 2003 % 2)
		}
		if kind > seen/2 {
			likes[i] = 1
		}
	}
	return tensor.FromInt64(was, batch, seen), tensor.FromInt64(likes)
}

// trainer is the state of a trainer process.
type trainer struct {
	agent *rpc.Agent
	group *dist.Group // of the trainers
	model nn.Module   // the remote table, then the local dense part
	dense []*nn.Parameter
	here  optim.Optimizer
	there *autograd.Optimizer
}

// newTrainer joins the two parts of the model.
func newTrainer(ctx context.Context, a *rpc.Agent, group *dist.Group) (*trainer, error) {
	ref, err := TheTable.Call(ctx, a.Peer("table"), struct{}{})
	if err != nil {
		return nil, err
	}
	table := remote.Of(ref)
	rows, err := table.Parameters(ctx)
	if err != nil {
		return nil, err
	}
	there, err := autograd.NewOptimizer(ctx, a, autograd.SGD(optim.SGDOptions{LR: tableLR}), rows)
	if err != nil {
		return nil, err
	}
	dense := newDense()
	ddp, err := parallel.NewDDP(ctx, dense, group)
	if err != nil {
		return nil, err
	}
	params := nn.Parameters(dense)
	return &trainer{a, group, nn.NewSequential(table, ddp), params, optim.NewSGD(params, optim.SGDOptions{LR: denseLR}), there}, nil
}

// step makes one step on this trainer's batch. The other trainers do the same meanwhile.
func (t *trainer) step(ctx context.Context, ids, labels *tensor.Tensor) (loss float64, err error) {
	// The gradients of the dense part go into its parameters, where DDP averages them.
	dc, err := autograd.NewContext(t.agent, autograd.WithParameterGrads())
	if err != nil {
		return 0, err
	}
	defer dc.Close()
	c, err := dc.Pass(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Recover(&err)

	t.here.ZeroGrad()
	l := tensor.CrossEntropy(c.Call(t.model, ids), labels)
	if err := dc.Backward(ctx, l); err != nil {
		return 0, err
	}

	// All trainers have read their rows by now, because their backward passes met in an
	// all-reduce. Each adds its share of the average, and reads again when all have.
	t.here.Step(nil)
	if err := t.there.Step(ctx, dc, 1); err != nil {
		return 0, err
	}
	return l.Item(), t.group.Barrier(ctx)
}

// train trains the model and returns the last loss of this trainer.
func (t *trainer) train(ctx context.Context) (loss float64, err error) {
	data := tensor.NewGenerator(int64(t.group.Rank()))
	for i := range steps {
		ids, labels := people(data)
		if loss, err = t.step(ctx, ids, labels); err != nil {
			return 0, err
		}
		if i%100 == 0 && t.group.Rank() == 0 {
			fmt.Printf("step %3d: loss %.3f\n", i, loss)
		}
	}
	return loss, nil
}

// same reports whether all trainers have the same bits in the dense part.
func (t *trainer) same(ctx context.Context) error {
	for _, p := range t.dense {
		n := p.Data().NumElems()
		all := tensor.Zeros(t.group.Size(), n)
		if err := t.group.AllGather(ctx, all, p.Data().Reshape(1, n)); err != nil {
			return err
		}
		for _, other := range all.Unbind(0) {
			if !slices.Equal(other.Float32s(), p.Data().Float32s()) {
				return errors.New("the trainers differ in " + p.Name())
			}
		}
	}
	return nil
}

// use runs in a trainer.
func use(ctx context.Context, a *rpc.Agent, group *dist.Group) error {
	t, err := newTrainer(ctx, a, group)
	if err != nil {
		return err
	}
	if _, err := t.train(ctx); err != nil {
		return err
	}
	if err := t.same(ctx); err != nil {
		return err
	}
	if group.Rank() == 0 {
		fmt.Printf("the trainers have the same %d parameters\n", nn.NumParams(t.model))
	}
	return nil
}

// start makes the agent of a process, and on a trainer the group of the trainers.
func start(ctx context.Context, world *dist.Group) (a *rpc.Agent, group *dist.Group, err error) {
	name := "table"
	if world.Rank() < trainers {
		name = fmt.Sprintf("trainer%d", world.Rank())
		if group, err = world.NewGroup(ctx, []int{0, 1}); err != nil {
			return nil, nil, err
		}
	}
	table := newTable()
	a, err = rpc.Init(ctx, name, rpc.WithGroup(world), autograd.WithEngine(), remote.Serve(),
		rpc.Serve(TheTable, func(ctx context.Context, _ struct{}) (*rpc.RRef[nn.Module], error) {
			return rpc.NewRRef(rpc.AgentOf(ctx), table), nil
		}))
	return a, group, err
}

func run(ctx context.Context, world *dist.Group) error {
	a, group, err := start(ctx, world)
	if err != nil {
		return err
	}
	defer a.Close()
	if group != nil {
		if err := use(ctx, a, group); err != nil {
			return err
		}
	}
	return a.Shutdown(ctx)
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), trainers+1, dist.Main(run)))
}
