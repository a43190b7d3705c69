// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// hookRank makes a process of the test binary a rank of TestHookOverSlowLink.
const hookRank = "hook-rank"

// hookCost is what a step costs rank 0: medians.
type hookCost struct {
	Hook      string
	SentBytes float64       // by the counter of the group
	WireBytes float64       // that the network device has sent, with heads and acknowledgements
	Step      time.Duration // from barrier to barrier
	Alone     time.Duration // of it: what the same pass takes under NoSync
}

// runHookRank trains a model of a million parameters with each hook, and prints the costs.
func runHookRank(steps string) int {
	err := dist.Main(func(ctx context.Context, g *dist.Group) error {
		n := 0
		if _, err := fmt.Sscan(steps, &n); err != nil {
			return err
		}
		for _, hook := range []string{"none", "bf16"} {
			cost, err := hookSteps(ctx, g, hook, n)
			if err != nil {
				return err
			}
			if line, err := json.Marshal(cost); err != nil {
				return err
			} else if g.Rank() == 0 {
				fmt.Println(string(line))
			}
		}
		return g.Barrier(ctx)
	})(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return launch.ExitCode(err)
}

// hookSteps does steps with a hook, the first two of which do not count.
func hookSteps(ctx context.Context, g *dist.Group, hook string, steps int) (hookCost, error) {
	const width, warmUp = 512, 2
	cost := hookCost{Hook: hook}
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	net := nn.NewSequential(nn.NewLinear(b, width, width), &nn.Tanh{}, nn.NewLinear(b, width, width), &nn.Tanh{},
		nn.NewLinear(b, width, width), &nn.Tanh{}, nn.NewLinear(b, width, width))
	var opts []parallel.DDPOption
	if hook == "bf16" {
		opts = append(opts, parallel.WithHook(parallel.BF16Hook()))
	}
	ddp, err := parallel.NewDDP(ctx, net, g, opts...)
	if err != nil {
		return cost, err
	}
	opt := optim.NewSGD(nn.Parameters(net), optim.SGDOptions{LR: 0.01})
	x := tensor.New(tensor.CPU(), tensor.Float32, 8, width)
	tensor.NewGenerator(int64(g.Rank())).Normal(x, 0, 1)
	pass := func() (err error) {
		c := nn.Training(ctx)
		defer c.Close()
		defer c.Recover(&err)
		y := c.Call(ddp, x)
		return y.Mul(y).Mean().Backward(ctx)
	}
	var sent, wire []int64
	var took, alone []time.Duration
	for step := range warmUp + steps {
		opt.ZeroGrad()
		start := time.Now()
		if err := ddp.NoSync(pass); err != nil {
			return cost, err
		}
		computed := time.Since(start)
		opt.ZeroGrad()
		if err := g.Barrier(ctx); err != nil {
			return cost, err
		}
		device, err := deviceSent("eth0")
		if err != nil {
			return cost, err
		}
		traffic := g.Traffic()
		start = time.Now()
		if err := pass(); err != nil {
			return cost, err
		}
		if err := g.Barrier(ctx); err != nil {
			return cost, err
		}
		stepTook := time.Since(start)
		after, err := deviceSent("eth0")
		if err != nil {
			return cost, err
		}
		opt.Step(nil)
		if step >= warmUp {
			sent, wire = append(sent, g.Traffic().Since(traffic).SentBytes), append(wire, after-device)
			took, alone = append(took, stepTook), append(alone, computed)
		}
	}
	cost.SentBytes, cost.WireBytes = float64(middle(sent)), float64(middle(wire))
	cost.Step, cost.Alone = middle(took), middle(alone)
	return cost, nil
}

func middle[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// deviceSent returns the bytes that a network device of this namespace has sent.
func deviceSent(device string) (int64, error) {
	b, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && name == device {
			var v [9]int64
			_, err := fmt.Sscan(rest, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8])
			return v[8], err
		}
	}
	return 0, fmt.Errorf("there is no network device %s here", device)
}
