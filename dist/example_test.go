// SPDX-License-Identifier: Apache-2.0

package dist_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// Every rank adds its part to a sum that all of them get.
func ExampleGroup_AllReduce() {
	err := dist.Spawn(context.Background(), 4, func(ctx context.Context, g *dist.Group) error {
		x := tensor.Full(float64(g.Rank()), 3)
		if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Println(x)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: float32[3] [6 6 6]
}

// An operation goes on while its rank computes something else.
func ExampleGroup_AllReduceAsync() {
	err := dist.Spawn(context.Background(), 2, func(ctx context.Context, g *dist.Group) error {
		gradient := tensor.Full(float64(g.Rank()+1), 2)
		w := g.AllReduceAsync(ctx, gradient, dist.Sum)
		other := tensor.Full(10, 2).Mul(tensor.Full(2, 2))
		if err := w.Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 {
			fmt.Println(gradient, other)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: float32[2] [3 3] float32[2] [20 20]
}

// Ranks have different numbers of rows, and each gets all of them.
func ExampleGroup_AllGatherList() {
	err := dist.Spawn(context.Background(), 3, func(ctx context.Context, g *dist.Group) error {
		mine := tensor.Full(float64(g.Rank()), g.Rank()+1)
		all := []*tensor.Tensor{tensor.Zeros(1), tensor.Zeros(2), tensor.Zeros(3)}
		if err := g.AllGatherList(ctx, all, mine); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Println(all[0], all[1], all[2])
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: float32[1] [0] float32[2] [1 1] float32[3] [2 2 2]
}

// Even and odd ranks talk among themselves while all have a sum under way.
func ExampleGroup_Split() {
	ctx := context.Background()
	err := dist.Spawn(ctx, 4, func(ctx context.Context, g *dist.Group) error {
		pair, err := g.Split(ctx, g.Rank()%2, g.Rank()) // ranks 0 and 2, ranks 1 and 3
		if err != nil {
			return err
		}
		x := tensor.Full(float64(g.Rank()), 2).To(tensor.BFloat16)
		sum := g.AllReduceAsync(ctx, x, dist.Sum) // goes on while the pair talks
		y := tensor.Full(float64(g.Rank()), 2)
		if err := pair.AllReduce(ctx, y, dist.Avg); err != nil {
			return err
		}
		if err := sum.Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 3 {
			fmt.Println(x, y)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: bfloat16[2] [6 6] float32[2] [2 2]
}

// Tokens go to the ranks of their experts, of which each gets another number.
func ExampleGroup_AllToAllSingle() {
	err := dist.Spawn(context.Background(), 2, func(ctx context.Context, g *dist.Group) error {
		tokens := tensor.FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 3, 2) // of 2 channels
		sends := [][]int{{1, 2}, {3, 0}}[g.Rank()]
		recvs := [][]int{{1, 3}, {2, 0}}[g.Rank()]
		mine := tensor.Zeros(recvs[0]+recvs[1], 2)
		if err := g.AllToAllSingle(ctx, mine, tokens, recvs, sends); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Println(mine)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: float32[4 2] [[1 2] [1 2] [3 4] [5 6]]
}

// A rank serves whoever asks first.
func ExampleGroup_RecvAny() {
	err := dist.Spawn(context.Background(), 3, func(ctx context.Context, g *dist.Group) error {
		if g.Rank() > 0 {
			return g.Send(ctx, tensor.Full(float64(10*g.Rank()), 1), 0)
		}
		sum := 0.0
		for range g.Size() - 1 {
			x := tensor.Zeros(1)
			if _, err := g.RecvAny(ctx, x); err != nil {
				return err
			}
			sum += x.Item()
		}
		fmt.Println(sum)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: 30
}

// All ranks shift their tensors to the next one at once.
func ExampleGroup_Batch() {
	err := dist.Spawn(context.Background(), 4, func(ctx context.Context, g *dist.Group) error {
		next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
		mine, theirs := tensor.Full(float64(g.Rank()), 1), tensor.Zeros(1)
		err := g.Batch(ctx, dist.Message{Tensor: mine, Peer: next}, dist.Message{Recv: true, Tensor: theirs, Peer: prev})
		if g.Rank() == 0 {
			fmt.Println(theirs)
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: float32[1] [3]
}

// One rank reads the settings and gives them to all.
func ExampleBroadcastObject() {
	type settings struct {
		Run       string
		BatchSize int
	}
	err := dist.Spawn(context.Background(), 2, func(ctx context.Context, g *dist.Group) error {
		var s settings
		if g.Rank() == 0 {
			s = settings{"first", 32}
		}
		s, err := dist.BroadcastObject(ctx, g, s, 0)
		if g.Rank() == 1 {
			fmt.Printf("%+v\n", s)
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: {Run:first BatchSize:32}
}

// A barrier with a limit tells all who hangs, and the group works on.
func ExampleGroup_MonitoredBarrier() {
	err := dist.Spawn(context.Background(), 3, func(ctx context.Context, g *dist.Group) error {
		limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if g.Rank() == 2 {
			<-limited.Done() // it hangs for a while
			limited = ctx
		}
		if err := g.MonitoredBarrier(limited); g.Rank() == 0 {
			fmt.Println(err)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		fmt.Println(err)
	}
}

// A rank of a job whose other ranks run PyTorch, which call init_process_group("gloo")
// and all_reduce. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where they meet.
func ExampleWithBackend() {
	ctx := context.Background()
	g, err := dist.Init(ctx, dist.WithBackend("gloo"))
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	x := tensor.Full(float64(g.Rank()), 4)
	if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
		log.Fatal(err)
	}
	log.Print(x)
}
