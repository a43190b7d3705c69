// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/link"
)

var (
	refSteps = flag.Int("rref-steps", 150, "steps of each program of TestRandomReferences")
	refSeed  = flag.Uint64("rref-seed", 1, "its seed")
)

// lossy makes an agent lose, double and delay the messages of the protocol.
func lossy(a *Agent, seed uint64, delayed *sync.WaitGroup) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 3))
	a.end.OnNote(rrefNote, func(from *link.ServerConn, body []byte) {
		mu.Lock()
		copies, delay := rng.IntN(3), time.Duration(rng.IntN(10))*time.Millisecond
		mu.Unlock()
		body = append([]byte(nil), body...)
		for i := range copies {
			if i == 0 && delay < 5*time.Millisecond {
				a.refs.take(from, body)
				continue
			}
			delayed.Add(1)
			time.AfterFunc(delay, func() {
				defer delayed.Done()
				a.refs.take(from, body)
			})
		}
	})
}

// TestRandomReferences plays programs on four agents at once, which leave values
// elsewhere, pass references on, release them at once or keep them, while a third
// of the protocol's messages is lost and a third comes twice. Every reference that
// a program has leads to its value; in the end nothing is left.
func TestRandomReferences(t *testing.T) {
	if testing.Short() {
		*refSteps = min(*refSteps, 40)
	}
	const num, most = 4, 12
	ctx := t.Context()
	var mu sync.Mutex
	held := map[*Agent][]*RRef[int]{}
	hand := func(a *Agent, r *RRef[int]) {
		mu.Lock()
		defer mu.Unlock()
		held[a] = append(held[a], r)
	}
	take := func(a *Agent, rng *rand.Rand) *RRef[int] {
		mu.Lock()
		defer mu.Unlock()
		mine := held[a]
		if len(mine) == 0 {
			return nil
		}
		i := rng.IntN(len(mine))
		r := mine[i]
		held[a] = append(mine[:i:i], mine[i+1:]...)
		return r
	}
	give := NewMethod[*RRef[int], struct{}]("random.give")
	all := agents(t, "pipe", num, WithLease(3*time.Second),
		Serve(refAdd, func(_ context.Context, in [2]int) (int, error) { return in[0] + in[1], nil }),
		Serve(refBack, func(_ context.Context, r *RRef[int]) (*RRef[int], error) { return r, nil }),
		Serve(give, func(ctx context.Context, r *RRef[int]) (struct{}, error) {
			hand(AgentOf(ctx), r)
			return struct{}{}, nil
		}))
	var delayed sync.WaitGroup
	for i, a := range all {
		lossy(a, *refSeed+uint64(i), &delayed)
	}
	check := func(a *Agent, r *RRef[int]) {
		if v, err := r.ToHere(ctx); err != nil || v != 42 {
			t.Errorf("seed %d: %s has a %v, which is %d, %v", *refSeed, a.name, r, v, err)
		}
	}
	var programs sync.WaitGroup
	for i, a := range all {
		programs.Go(func() {
			rng := rand.New(rand.NewPCG(*refSeed, uint64(i)))
			for range *refSteps {
				if t.Failed() {
					return
				}
				mu.Lock()
				n := len(held[a])
				mu.Unlock()
				r := take(a, rng)
				switch {
				case r == nil || n < most && rng.IntN(3) == 0:
					if r != nil {
						hand(a, r)
					}
					made, err := refAdd.Remote(ctx, a.PeerRank(rng.IntN(num)), [2]int{40, 2})
					if err != nil {
						t.Errorf("seed %d: %v", *refSeed, err)
						return
					}
					hand(a, made)
				case rng.IntN(2) == 0:
					check(a, r)
					r.Release()
				case rng.IntN(2) == 0:
					_, err := give.Call(ctx, a.PeerRank(rng.IntN(num)), r)
					r.Release()
					if err != nil {
						t.Errorf("seed %d: give away: %v", *refSeed, err)
						return
					}
				default:
					back, err := refBack.Call(ctx, a.PeerRank(rng.IntN(num)), r)
					r.Release()
					if err != nil {
						t.Errorf("seed %d: pass on: %v", *refSeed, err)
						return
					}
					check(a, back)
					back.Release()
				}
			}
		})
	}
	programs.Wait()
	for _, a := range all {
		for _, r := range held[a] {
			check(a, r)
			r.Release()
		}
	}
	if !t.Failed() {
		empty(t, all...)
	}
	for _, a := range all {
		a.Close()
	}
	delayed.Wait()
}
