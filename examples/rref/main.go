// SPDX-License-Identifier: Apache-2.0

// Command rref uses values in other processes: a random walk that keeps a state, and a
// tensor that goes from one worker to another and not through the caller.
package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// Walk is a simulation. It cannot be sent, so it stays in the process that makes it.
type Walk struct {
	mu   sync.Mutex
	dice *tensor.Generator
	at   int
}

var (
	NewWalk = rpc.NewMaker[int64, *Walk]("walk.New")
	Step    = rpc.NewOn[*Walk, int, int]("walk.Step")

	Squares = rpc.NewMethod[int, *tensor.Tensor]("squares")
	Total   = rpc.NewMethod[*rpc.RRef[*tensor.Tensor], float64]("total")
)

func newWalk(ctx context.Context, seed int64) (*Walk, error) {
	return &Walk{dice: tensor.NewGenerator(seed)}, nil
}

// step makes some steps to the left or right and returns the new position.
func step(ctx context.Context, w *Walk, n int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		if w.dice.Float64() < 0.5 {
			w.at--
		} else {
			w.at++
		}
	}
	return w.at, nil
}

func squares(ctx context.Context, n int) (*tensor.Tensor, error) {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i * i)
	}
	return tensor.FromFloat32(values), nil
}

// total fetches a tensor from its process and returns the sum.
func total(ctx context.Context, ref *rpc.RRef[*tensor.Tensor]) (float64, error) {
	defer ref.Release()
	t, err := ref.ToHere(ctx)
	if err != nil {
		return 0, err
	}
	return t.Sum().Item(), nil
}

func use(ctx context.Context, agent *rpc.Agent) error {
	worker1, worker2 := agent.Peer("worker1"), agent.Peer("worker2")

	// A value of worker1. Only its methods can reach it.
	walk, err := NewWalk.Remote(ctx, worker1, 7)
	if err != nil {
		return err
	}
	defer walk.Release()
	for range 2 {
		at, err := Step.Call(ctx, walk, 1000)
		if err != nil {
			return err
		}
		fmt.Printf("the walk at %s has come to %d\n", walk.OwnerName(), at)
	}

	// A result that stays at worker1 and is sent from there to worker2.
	ref, err := Squares.Remote(ctx, worker1, 100)
	if err != nil {
		return err
	}
	sum, err := Total.Call(ctx, worker2, ref)
	if err != nil {
		return err
	}
	fmt.Printf("worker2 has added up what %s made: %.0f\n", ref.OwnerName(), sum)

	// The value is freed when no reference to it is left.
	ref.Release()
	_, err = ref.ToHere(ctx)
	fmt.Println(err)
	return nil
}

func run(ctx context.Context, group *dist.Group) error {
	agent, err := rpc.Init(ctx, fmt.Sprintf("worker%d", group.Rank()), rpc.WithGroup(group),
		rpc.ServeMaker(NewWalk, newWalk), rpc.ServeOn(Step, step),
		rpc.Serve(Squares, squares), rpc.Serve(Total, total))
	if err != nil {
		return err
	}
	defer agent.Close()
	if group.Rank() == 0 {
		if err := use(ctx, agent); err != nil {
			return err
		}
	}
	return agent.Shutdown(ctx)
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), 3, dist.Main(run)))
}
