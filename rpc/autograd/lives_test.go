// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	numLives  = flag.Int("lives", 12, "how often each trainer of TestLives is started; some thousand where connections end another way")
	livesSeed = flag.Uint64("lives-seed", 1, "its seed")
)

var (
	chainMethod = rpc.NewMethod[*tensor.Tensor, *tensor.Tensor]("test.chain")
	useMethod   = rpc.NewMethod[*rpc.RRef[*tensor.Tensor], *tensor.Tensor]("test.use")
)

// serveLives: the first of two servers calls its caller back, and the other one.
func serveLives(rank int) rpc.Option {
	s := newStage(rank)
	return rpc.WithOptions(s.serve(), rpc.WithLease(10*time.Second),
		rpc.Serve(squareMethod, func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x.Square(), nil }),
		rpc.Serve(useMethod, func(ctx context.Context, r *rpc.RRef[*tensor.Tensor]) (*tensor.Tensor, error) {
			defer r.Release()
			return r.ToHere(ctx)
		}),
		rpc.Serve(chainMethod, func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			c := Ctx(ctx)
			y := s.forward(c, x)
			back := squareMethod.Async(c, rpc.Caller(ctx), y)
			y, err := layerMethod.Call(c, rpc.AgentOf(ctx).PeerRank(1), y)
			if err != nil {
				return nil, err
			}
			z, err := back.Wait(ctx)
			if err != nil {
				return nil, err
			}
			return y.Add(z), nil
		}))
}

// TestLives: three trainers are closed at any time, also in the middle of a step, and
// started again at once, while two servers live on. Nothing that a trainer does fails
// before it is closed itself, and in the end the servers keep nothing.
func TestLives(t *testing.T) {
	for _, transport := range []string{"auto", "unix"} {
		t.Run(transport, func(t *testing.T) {
			t.Setenv("COHORT_TRANSPORT", transport)
			peers := peersOf(t.TempDir()+"/s", 5)
			start := func(rank int) *rpc.Agent {
				a, err := rpc.Init(t.Context(), peers[rank].Name, rpc.WithToken(agenttest.Token), rpc.WithPeers(peers), serveLives(rank))
				if err != nil {
					t.Error(err)
				}
				return a
			}
			servers := []*rpc.Agent{start(0), start(1)}
			var trainers sync.WaitGroup
			for rank := 2; rank < len(peers) && !t.Failed(); rank++ {
				trainers.Go(func() {
					rng := rand.New(rand.NewPCG(*livesSeed, uint64(rank)))
					for n := 0; n < *numLives && !t.Failed(); n++ {
						live(t, n, start(rank), rng)
					}
				})
			}
			trainers.Wait()
			for _, a := range servers {
				agenttest.Eventually(t, a.Name()+" is referred to by nobody", func() bool { return len(a.References().By) == 0 })
			}
			wantReleased(t, servers)
			for _, a := range servers {
				a.Close()
			}
		})
	}
}

// live is one life of a trainer.
func live(t *testing.T, n int, a *rpc.Agent, rng *rand.Rand) {
	if a == nil {
		return
	}
	dying := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(dying)
		a.Close()
	})
	defer end()
	if rng.IntN(3) == 0 {
		defer time.AfterFunc(time.Duration(rng.IntN(8000))*time.Microsecond, end).Stop()
	}
	for range 1 + rng.IntN(3) {
		if err := liveStep(soon(t), a, rng); err != nil {
			select {
			case <-dying:
			default:
				t.Errorf("seed %d: life %d of %v: %v", *livesSeed, n, a, err)
			}
			return
		}
	}
}

// liveStep does all that a trainer can. It leaves things open at times.
func liveStep(ctx context.Context, a *rpc.Agent, rng *rand.Rand) error {
	x := tensor.FromFloat32(values(8, 1), 2, 4)
	dc, err := NewContext(a)
	if err != nil {
		return err
	}
	c, err := dc.Pass(ctx)
	if err != nil {
		return err
	}
	y, err := chainMethod.Call(c, a.PeerRank(0), x)
	if err != nil || rng.IntN(4) == 0 {
		return err
	}
	if err := dc.Backward(ctx, y.Sum()); err != nil {
		return err
	}
	r, err := squareMethod.Remote(ctx, a.PeerRank(0), x)
	if err != nil {
		return err
	}
	if _, err := useMethod.Call(ctx, a.PeerRank(1), r); err != nil {
		return err
	}
	refs, err := refsMethod.Call(ctx, a.PeerRank(1), struct{}{})
	if err != nil {
		return err
	}
	opt, err := NewOptimizer(ctx, a, SGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}), refs)
	if err != nil {
		return err
	}
	if err := opt.SetLR(ctx, 0.2); err != nil || rng.IntN(2) == 0 {
		return err
	}
	opt.Close()
	r.Release()
	dc.Close()
	return nil
}
