// SPDX-License-Identifier: Apache-2.0

// Command parameterserver trains a model that one process, the server, keeps. Trainers
// compute gradients on their own data and send them to the server. When the gradients
// of all trainers have come, the server makes one step with their mean. It answers all
// trainers with the new parameters.
package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	steps = 301
	batch = 32
	rings = 3
)

var (
	// Fetch returns the current parameters.
	Fetch = rpc.NewMethod[struct{}, []*tensor.Tensor]("server.Fetch")
	// Update takes the gradients of one trainer. It returns the parameters after the step
	// that uses them.
	Update = rpc.NewMethod[Gradients, []*tensor.Tensor]("server.Update")
)

// Gradients has the gradients of a trainer, and the number of steps before them.
type Gradients struct {
	Step   int
	Values []*tensor.Tensor
}

// Server keeps the model and the gradients for its next step.
type Server struct {
	model    nn.Module
	params   []*nn.Parameter
	opt      optim.Optimizer
	trainers int

	mu      sync.Mutex
	steps   int                           // steps made so far
	grads   map[int][]*tensor.Tensor      // received for the next step, by the trainer's rank
	after   *rpc.Future[[]*tensor.Tensor] // the parameters after the next step
	resolve func([]*tensor.Tensor, error)
}

func newServer(trainers int) *Server {
	s := &Server{model: newModel(), trainers: trainers, grads: map[int][]*tensor.Tensor{}}
	s.params = nn.Parameters(s.model)
	s.opt = optim.NewSGD(s.params, optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	s.after, s.resolve = rpc.NewFuture[[]*tensor.Tensor]()
	return s
}

func (s *Server) fetch(ctx context.Context, _ struct{}) ([]*tensor.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copies(), nil
}

// update returns a future at once. The call of the last trainer makes the step, which
// answers all trainers.
func (s *Server) update(ctx context.Context, grads Gradients) *rpc.Future[[]*tensor.Tensor] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(grads); err != nil {
		return rpc.Resolved[[]*tensor.Tensor](nil, err)
	}
	if grads.Step < s.steps { // a repeated call after a timeout: the server has used them
		return rpc.Resolved(s.copies(), nil)
	}
	s.grads[rpc.Caller(ctx).Rank()] = grads.Values
	after := s.after
	if len(s.grads) == s.trainers {
		s.step()
		s.resolve(s.copies(), nil)
		s.after, s.resolve = rpc.NewFuture[[]*tensor.Tensor]()
	}
	return after
}

func (s *Server) check(grads Gradients) error {
	if grads.Step > s.steps {
		return fmt.Errorf("gradients for step %d, but the next one is %d", grads.Step, s.steps)
	}
	if len(grads.Values) != len(s.params) {
		return fmt.Errorf("%d gradients for %d parameters", len(grads.Values), len(s.params))
	}
	for i, p := range s.params {
		if g := grads.Values[i]; g == nil || !slices.Equal(g.Shape(), p.Data().Shape()) || g.DType() != p.Data().DType() {
			return fmt.Errorf("the gradient of parameter %s is %v, want %v", p.Name(), g, p.Data().Shape())
		}
	}
	return nil
}

// step makes a step with the mean of all gradients. It adds them in the order of the
// ranks, so the bits do not depend on the order of arrival.
func (s *Server) step() {
	ranks := slices.Sorted(maps.Keys(s.grads))
	for i, p := range s.params {
		sum := s.grads[ranks[0]][i]
		for _, r := range ranks[1:] {
			sum.Axpy(1, s.grads[r][i])
		}
		p.SetGrad(sum)
	}
	s.opt.Step(tensor.Full(1 / float64(s.trainers)))
	s.steps++
	clear(s.grads)
}

// copies returns copies of the parameters for an answer, because the next step may begin
// while the answer is still being written.
func (s *Server) copies() []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(s.params))
	for i, p := range s.params {
		out[i] = p.Data().Clone()
	}
	return out
}

// train runs in a trainer. It returns the loss of its last batch.
func train(ctx context.Context, server *rpc.Peer, points *tensor.Generator) (loss float64, err error) {
	model := newModel()
	params := nn.Parameters(model)
	values, err := Fetch.Call(ctx, server, struct{}{})
	for step := range steps {
		if err != nil {
			return 0, err
		}
		grads := make([]*tensor.Tensor, len(params))
		for i, p := range params {
			p.Data().CopyFrom(values[i])
			p.ZeroGrad()
		}
		x, y := draw(points)
		loss, err = nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor { return tensor.CrossEntropy(c.Call(model, x), y) })
		if err != nil {
			return 0, err
		}
		if step%100 == 0 {
			fmt.Printf("step %3d: loss %.3f\n", step, loss)
		}
		for i, p := range params {
			grads[i] = p.Grad()
		}
		values, err = Update.Call(ctx, server, Gradients{step, grads})
	}
	return loss, err
}

// newModel returns a model that predicts in which ring a point lies.
func newModel() nn.Module {
	b := &nn.Build{}
	return nn.NewSequential(nn.NewLinear(b, 2, 32), &nn.Tanh{}, nn.NewLinear(b, 32, rings))
}

// draw returns points [batch, 2] and their rings [batch].
func draw(g *tensor.Generator) (x, y *tensor.Tensor) {
	xs, ys := make([]float32, 0, 2*batch), make([]int64, 0, batch)
	for range batch {
		radius, angle := rings*g.Float64(), 2*math.Pi*g.Float64()
		xs = append(xs, float32(radius*math.Cos(angle)), float32(radius*math.Sin(angle)))
		ys = append(ys, int64(radius))
	}
	return tensor.FromFloat32(xs, batch, 2), tensor.FromInt64(ys)
}

// accuracy returns the fraction of new points for which a model predicts the right ring.
func accuracy(ctx context.Context, model nn.Module) float64 {
	points, sum := tensor.NewGenerator(100), 0.0
	c := nn.Evaluation(ctx)
	defer c.Close()
	for range 20 {
		x, y := draw(points)
		sum += nn.Accuracy(c.Call(model, x), y)
	}
	return sum / 20
}

func run(ctx context.Context, group *dist.Group) error {
	if group.Rank() > 0 {
		agent, err := rpc.Init(ctx, fmt.Sprintf("trainer%d", group.Rank()), rpc.WithGroup(group))
		if err != nil {
			return err
		}
		defer agent.Close()
		if _, err := train(ctx, agent.Peer("server"), tensor.NewGenerator(int64(group.Rank()))); err != nil {
			return err
		}
		return agent.Shutdown(ctx)
	}
	s := newServer(group.Size() - 1)
	agent, err := rpc.Init(ctx, "server", rpc.WithGroup(group), rpc.Serve(Fetch, s.fetch), rpc.ServeAsync(Update, s.update))
	if err != nil {
		return err
	}
	defer agent.Close()
	if err := agent.Shutdown(ctx); err != nil { // waits for the trainers
		return err
	}
	fmt.Printf("accuracy %.3f\n", accuracy(ctx, s.model))
	return nil
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), 4, dist.Main(run)))
}
