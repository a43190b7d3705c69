// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	stormSeed  = flag.Uint64("storm-seed", 1, "seed of TestStorm")
	stormCalls = flag.Int("storm-calls", 30, "calls of each caller in TestStorm")
)

type stormArgs struct {
	X     *tensor.Tensor
	Sleep time.Duration
	Way   []int // agents to go on to
	Fail  bool
}

var (
	storm       = NewMethod[stormArgs, *tensor.Tensor]("test.storm")
	stormStream = NewStream[int, *tensor.Tensor]("test.stormstream")
)

func serveStorm() Option {
	return WithOptions(
		Serve(storm, func(ctx context.Context, in stormArgs) (*tensor.Tensor, error) {
			select {
			case <-time.After(in.Sleep):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if len(in.Way) > 0 {
				next := in
				next.Way = in.Way[1:]
				return storm.Call(ctx, AgentOf(ctx).PeerRank(in.Way[0]), next)
			}
			if in.Fail {
				return nil, errSentinel
			}
			return in.X.AddScalar(1), nil
		}),
		ServeStream(stormStream, func(ctx context.Context, s *Stream[*tensor.Tensor, int]) error {
			for n, err := range s.All(ctx) {
				if err != nil {
					return err
				}
				if err := s.Send(ctx, tensor.Full(float64(n), n)); err != nil {
					return err
				}
			}
			return nil
		}))
}

// TestStorm makes calls of all kinds from many goroutines between agents: small and
// large, going on to others, failing, given up by context and by time, and streams.
// What comes back is right, or an error that is one of those that may be. A longer
// one: go test ./rpc -run TestStorm -storm-calls 3000 -storm-seed 7.
func TestStorm(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		const numAgents, callers = 3, 6
		all := agents(t, kind, numAgents, serveStorm(), WithError("test.sentinel", errSentinel))
		var wg sync.WaitGroup
		for who := range numAgents * callers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(*stormSeed, uint64(who)))
				for i := range *stormCalls {
					if err := stormCall(t.Context(), all[who%numAgents], rng); err != nil {
						t.Errorf("seed %d, caller %d, call %d: %v", *stormSeed, who, i, err)
						return
					}
				}
			})
		}
		wg.Wait()
		for _, a := range all {
			wg.Go(func() {
				if err := a.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, a := range all { // the last are counted when their answers have gone out
			agenttest.Eventually(t, fmt.Sprintf("%v counts no call in flight", a), func() bool {
				return !slices.ContainsFunc(append(a.Stats().Called, a.Stats().Served...), func(s MethodStats) bool { return s.InFlight != 0 })
			})
		}
	})
}

func stormCall(ctx context.Context, a *Agent, rng *rand.Rand) error {
	p := a.PeerRank(rng.IntN(a.Size()))
	if rng.IntN(10) == 0 {
		return stormTalk(ctx, p, rng)
	}
	in := stormArgs{Sleep: time.Duration(rng.IntN(300)) * time.Microsecond, Fail: rng.IntN(10) == 0}
	size := rng.IntN(100)
	if rng.IntN(5) == 0 {
		size = rng.IntN(100_000)
	}
	in.X = tensor.Full(float64(size), size)
	for range rng.IntN(3) {
		in.Way = append(in.Way, rng.IntN(a.Size()))
	}
	var cancel context.CancelFunc = func() {}
	patience := time.Duration(rng.IntN(500)) * time.Microsecond
	impatient := rng.IntN(4)
	switch impatient {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, patience)
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(patience, cancel)
	}
	defer cancel()
	var out *tensor.Tensor
	var err error
	if rng.IntN(2) == 0 {
		out, err = storm.Call(ctx, p, in)
	} else {
		f := storm.Async(ctx, p, in)
		// What is sent is not to change before the answer.
		out, err = f.Wait(context.Background())
	}
	switch {
	case err == nil && in.Fail:
		return errors.New("a call that should have failed did not")
	case err == nil:
		if got := out.Float32s(); len(got) != size || size > 0 && (got[0] != float32(size+1) || got[size-1] != float32(size+1)) {
			return fmt.Errorf("%d elements, want %d: %v", len(got), size, got[:min(len(got), 3)])
		}
		return nil
	case errors.Is(err, errSentinel) && in.Fail:
		return nil
	case impatient == 0 && errors.Is(err, context.DeadlineExceeded), impatient == 1 && errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

func stormTalk(ctx context.Context, p *Peer, rng *rand.Rand) error {
	s, err := stormStream.Open(ctx, p)
	if err != nil {
		return err
	}
	defer s.Close()
	var ns []int
	for range rng.IntN(20) {
		ns = append(ns, rng.IntN(10_000))
	}
	sent := make(chan error, 1)
	go func() {
		defer s.CloseSend()
		for _, n := range ns {
			if err := s.Send(ctx, n); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	leave := rng.IntN(3) == 0
	for i, n := range ns {
		if leave && i == 5 {
			s.Close()
			<-sent
			return nil
		}
		v, err := s.Recv(ctx)
		if err != nil {
			return fmt.Errorf("message %d of %d of a stream: %w", i, len(ns), err)
		}
		if v.NumElems() != n || n > 0 && v.Float32s()[n-1] != float32(n) {
			return fmt.Errorf("message %d of a stream has %d elements, want %d", i, v.NumElems(), n)
		}
	}
	if err := <-sent; err != nil {
		return err
	}
	if _, err := s.Recv(ctx); err != io.EOF {
		return fmt.Errorf("the end of a stream is %w", err)
	}
	return nil
}
