// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// inGoroutines runs the agent's part with observers in goroutines, which answer Play by
// the functions given.
func inGoroutines(t *testing.T, p *Policy, observers []func(context.Context, int64) (Played, error), part func(ctx context.Context, observers []*rpc.Peer) error) {
	t.Helper()
	err := dist.Spawn(t.Context(), len(observers)+1, func(ctx context.Context, g *dist.Group) error {
		name, serve := "agent", rpc.ServeAsync(Act, p.act)
		if g.Rank() > 0 {
			name, serve = fmt.Sprintf("observer%d", g.Rank()), rpc.Serve(Play, observers[g.Rank()-1])
		}
		a, err := rpc.Init(ctx, name, rpc.WithGroup(g), serve)
		if err != nil {
			return err
		}
		defer a.Close()
		if g.Rank() == 0 {
			if err := part(ctx, a.Peers()[1:]); err != nil {
				return err
			}
		}
		return a.Shutdown(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

type observer = func(context.Context, int64) (Played, error)

// TestLearns is `go run ./examples/reinforce`. The pole learns to stand several times as
// long. A run in goroutines has the same games: they do not depend on the order of calls.
func TestLearns(t *testing.T) {
	stdout := exampletest.Run(t, nil)
	p := newPolicy()
	inGoroutines(t, p, []observer{play, play, play}, func(ctx context.Context, observers []*rpc.Peer) error {
		stood, err := p.train(ctx, observers)
		if err != nil {
			return err
		}
		last := stood[len(stood)-5:]
		if mean := (last[0] + last[1] + last[2] + last[3] + last[4]) / 5; stood[0] > 40 || mean < 100 {
			t.Errorf("the pole stood for %.0f steps in the first round, want at most 40, and for %.0f in the last ones, want at least 100", stood[0], mean)
		}
		for _, r := range []int{0, 14, rounds - 1} {
			if want := fmt.Sprintf("round %2d: the pole stands for %3.0f steps", r+1, stood[r]); !strings.Contains(stdout, want) {
				t.Errorf("%q is missing from\n%s", want, stdout)
			}
		}
		return nil
	})
}

// TestFailedObserver: if an observer fails, the error names it, and the games of the
// others go on.
func TestFailedObserver(t *testing.T) {
	p := newPolicy()
	finished := make(chan Played, 2)
	plays := func(ctx context.Context, seed int64) (Played, error) {
		out, err := play(ctx, seed)
		if err == nil {
			finished <- out
		}
		return out, err
	}
	fails := func(ctx context.Context, seed int64) (Played, error) {
		// It fails while its question is unanswered.
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, _ = Act.Call(short, rpc.Caller(ctx), tensor.Zeros(1, stateSize))
		return Played{}, errors.New("the camera is broken")
	}
	inGoroutines(t, p, []observer{plays, fails, plays}, func(ctx context.Context, observers []*rpc.Peer) error {
		if _, err := p.round(ctx, observers, 0); err == nil || !strings.Contains(err.Error(), "observer2") || !strings.Contains(err.Error(), "the camera is broken") {
			t.Errorf("got %v, want the error of observer2", err)
		}
		if len(finished) != 2 {
			t.Errorf("%d of the other observers have played to the end, want 2", len(finished))
		}
		return nil
	})
}

// TestWrongStates: malformed states get an error, and nobody waits for them.
func TestWrongStates(t *testing.T) {
	p := newPolicy()
	for _, states := range []*tensor.Tensor{nil, tensor.Zeros(3), tensor.Zeros(2, 3), tensor.FromInt64(make([]int64, 4), 1, 4)} {
		if _, err := p.act(t.Context(), states).Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "want float32 [n, 4]") {
			t.Errorf("%v: got %v", states, err)
		}
	}
}

// TestCartPole: a push to the right from rest, worked out by hand, and the ends of a game.
func TestCartPole(t *testing.T) {
	p := &CartPole{}
	if reward, done := p.step(1); reward != 1 || done {
		t.Errorf("a first step gives %v, %v", reward, done)
	}
	if math.Abs(p.speed-0.195122) > 1e-6 || math.Abs(p.turn+0.292683) > 1e-6 || p.x != 0 || p.angle != 0 {
		t.Errorf("after a push: %+v", *p)
	}
	for _, over := range []CartPole{{x: 2.5}, {x: -2.5}, {angle: 0.3}, {angle: -0.3}, {steps: maxSteps - 1}} {
		if _, done := over.step(0); !done {
			t.Errorf("%+v: the game goes on", over)
		}
	}
}
