// SPDX-License-Identifier: Apache-2.0

// Command reinforce learns to balance a pole. Observers play the game, each in its own
// process. An agent has the policy, chooses their actions, and learns from the rewards
// with the algorithm REINFORCE.
package main

import (
	"cmp"
	"context"
	"fmt"
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
	rounds   = 30
	games    = 8 // games of an observer at the same time
	discount = 0.99
)

var (
	// Play lets an observer play its games to the end, with random numbers from a seed.
	Play = rpc.NewMethod[int64, Played]("observer.Play")
	// Act asks the agent for an action in each of the states [n, stateSize].
	Act = rpc.NewMethod[*tensor.Tensor, []int64]("agent.Act")
)

// Played contains all steps of all games of an observer.
type Played struct {
	States  *tensor.Tensor // [steps, stateSize]
	Actions *tensor.Tensor // [steps]
	Returns *tensor.Tensor // [steps]: the discounted reward of each action
}

// play runs in an observer. It asks the agent that called it for the actions.
func play(ctx context.Context, seed int64) (Played, error) {
	agent, dice := rpc.Caller(ctx), tensor.NewGenerator(seed)
	type game struct {
		*CartPole
		states, rewards []float32
		actions         []int64
	}
	all := make([]*game, games)
	for i := range all {
		all[i] = &game{CartPole: newCartPole(dice)}
	}
	for live := slices.Clone(all); len(live) > 0; {
		var states []float32
		for _, g := range live {
			states = append(states, g.state()...)
		}
		actions, err := Act.Call(ctx, agent, tensor.FromFloat32(states, len(live), stateSize))
		if err != nil {
			return Played{}, err
		}
		var next []*game
		for i, g := range live {
			g.states = append(g.states, states[i*stateSize:(i+1)*stateSize]...)
			reward, done := g.step(actions[i])
			g.actions, g.rewards = append(g.actions, actions[i]), append(g.rewards, float32(reward))
			if !done {
				next = append(next, g)
			}
		}
		live = next
	}
	var states, returns []float32
	var actions []int64
	for _, g := range all {
		for i := len(g.rewards) - 2; i >= 0; i-- {
			g.rewards[i] += discount * g.rewards[i+1]
		}
		states, actions, returns = append(states, g.states...), append(actions, g.actions...), append(returns, g.rewards...)
	}
	return Played{tensor.FromFloat32(states, len(actions), stateSize), tensor.FromInt64(actions), tensor.FromFloat32(returns)}, nil
}

// Policy is the state of the agent.
type Policy struct {
	model nn.Module
	opt   optim.Optimizer

	mu      sync.Mutex
	dice    *tensor.Generator
	playing int // observers
	asked   []question
}

// question is a call of Act that has not been answered.
type question struct {
	rank   int
	states *tensor.Tensor
	answer func([]int64, error)
}

func newPolicy() *Policy {
	b := &nn.Build{}
	model := nn.NewSequential(nn.NewLinear(b, stateSize, 32), &nn.ReLU{}, nn.NewLinear(b, 32, numActions))
	return &Policy{
		model: model, opt: optim.NewAdam(nn.Parameters(model), optim.AdamOptions{LR: 0.02}),
		dice: tensor.NewGenerator(1),
	}
}

// act returns a future, because the questions of all playing observers go through the
// model together.
func (p *Policy) act(ctx context.Context, states *tensor.Tensor) *rpc.Future[[]int64] {
	if states == nil || states.NumDims() != 2 || states.Dim(1) != stateSize || states.DType() != tensor.Float32 {
		return rpc.Resolved[[]int64](nil, fmt.Errorf("the states are %v, want float32 [n, %d]", states, stateSize))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f, answer := rpc.NewFuture[[]int64]()
	p.asked = append(p.asked, question{rpc.Caller(ctx).Rank(), states, answer})
	p.answer()
	return f
}

// leave counts out an observer that has finished or died. Nobody waits for it any more.
func (p *Policy) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.playing--
	p.answer()
}

// answer draws actions for all questions when all playing observers have asked.
func (p *Policy) answer() {
	if len(p.asked) == 0 || len(p.asked) < p.playing {
		return
	}
	// Sorted by rank, so that every run draws the same random numbers.
	slices.SortFunc(p.asked, func(a, b question) int { return cmp.Compare(a.rank, b.rank) })
	var states []*tensor.Tensor
	for _, q := range p.asked {
		states = append(states, q.states)
	}
	c := nn.Evaluation(context.Background()) // even if an observer gives up
	defer c.Close()
	left := c.Call(p.model, tensor.Cat(0, states...)).Softmax(1).Narrow(1, 0, 1).Contiguous().Float32s()
	for _, q := range p.asked {
		actions := make([]int64, q.states.Dim(0))
		for i := range actions {
			if p.dice.Float64() >= float64(left[i]) {
				actions[i] = 1
			}
		}
		left = left[len(actions):]
		q.answer(actions, nil)
	}
	p.asked = nil
}

// round lets all observers play, and learns from their games. It returns for how many
// steps the poles stood on average. Observer i draws from the seed seed+i.
func (p *Policy) round(ctx context.Context, observers []*rpc.Peer, seed int64) (float64, error) {
	p.mu.Lock()
	p.playing = len(observers)
	p.mu.Unlock()
	var calls []*rpc.Future[Played]
	var left sync.WaitGroup
	for i, o := range observers {
		call := Play.Async(ctx, o, seed+int64(i))
		left.Go(func() {
			<-call.Done()
			p.leave()
		})
		calls = append(calls, call)
	}
	played, err := rpc.WaitAll(ctx, calls...)
	left.Wait()
	if err != nil {
		return 0, err
	}
	var states, actions, returns []*tensor.Tensor
	for _, o := range played {
		states, actions, returns = append(states, o.States), append(actions, o.Actions), append(returns, o.Returns)
	}
	all := Played{tensor.Cat(0, states...), tensor.Cat(0, actions...), tensor.Cat(0, returns...)}
	if err := p.learn(ctx, all); err != nil {
		return 0, err
	}
	return float64(all.Actions.NumElems()) / float64(games*len(observers)), nil
}

// learn makes actions with a higher reward more likely.
func (p *Policy) learn(ctx context.Context, all Played) error {
	better := all.Returns.SubScalar(all.Returns.Mean().Item()).DivScalar(math.Max(all.Returns.Std(1).Item(), 1e-6))
	p.opt.ZeroGrad()
	_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
		chosen := c.Call(p.model, all.States).LogSoftmax(1).Gather(1, all.Actions.Unsqueeze(1)).Squeeze(1)
		return chosen.Mul(better).Mean().Neg()
	})
	if err == nil {
		p.opt.Step(nil)
	}
	return err
}

// train plays all rounds and returns the result of each.
func (p *Policy) train(ctx context.Context, observers []*rpc.Peer) (stood []float64, err error) {
	for r := range rounds {
		mean, err := p.round(ctx, observers, int64(r*len(observers)))
		if err != nil {
			return nil, err
		}
		if stood = append(stood, mean); r%5 == 4 || r == 0 {
			fmt.Printf("round %2d: the pole stands for %3.0f steps of %d\n", r+1, mean, maxSteps)
		}
	}
	return stood, nil
}

func run(ctx context.Context, group *dist.Group) error {
	p := newPolicy()
	name, part := "agent", rpc.ServeAsync(Act, p.act)
	if group.Rank() > 0 {
		name, part = fmt.Sprintf("observer%d", group.Rank()), rpc.Serve(Play, play)
	}
	a, err := rpc.Init(ctx, name, rpc.WithGroup(group), part)
	if err != nil {
		return err
	}
	defer a.Close()
	if group.Rank() == 0 {
		if _, err := p.train(ctx, a.Peers()[1:]); err != nil {
			return err
		}
	}
	return a.Shutdown(ctx)
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), 4, dist.Main(run)))
}
