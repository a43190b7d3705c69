// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/tensor"
)

// virtualNodes are the nodes that ranks of a test say they are on: ranks of one
// letter share memory, others talk over TCP.
var virtualNodes = map[int]string{2: "ab", 3: "aba", 4: "aabb", 5: "aabbc", 8: "abcabcaa", 16: "aaaabbbbccccdddd"}

// mixedRanks is [initRanks] for ranks of several nodes that are all here.
func mixedRanks(ctx context.Context, n int, main func(context.Context, *Group) error, opts ...Option) error {
	return ranksOnNodes(ctx, virtualNodes[n], n, main, opts...)
}

// ranksOnNodes makes a rank on each of the nodes, or where none are given n on
// this one.
func ranksOnNodes(ctx context.Context, nodes string, n int, main func(context.Context, *Group) error, opts ...Option) error {
	port, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		return err
	}
	defer port.Close()
	begun := initialise(n, "")
	errs := make([]error, n)
	forming, giveUp := context.WithCancelCause(ctx) // who cannot begin is waited for by none
	defer giveUp(nil)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			opts := append([]Option{WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", port.Addr(), r, n))}, opts...)
			if nodes != "" {
				opts = append(opts, WithNodeID("node "+nodes[r:r+1]))
			}
			g, err := Init(forming, opts...)
			begun()
			if err != nil {
				errs[r] = err
				giveUp(err)
				return
			}
			if errs[r] = main(ctx, g); errs[r] != nil {
				g.fail(errs[r])
			}
			if err := g.Close(); err != nil && errs[r] == nil {
				errs[r] = fmt.Errorf("close: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestTopologies runs collectives, messages and groups over ranks that are
// spread over nodes in many ways.
func TestTopologies(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[string]string{"aabb": "shm+tcp", "abab": "shm+tcp", "aaab": "shm+tcp", "aabbc": "shm+tcp", "abc": "tcp", "aaa": "shm"} {
		t.Run(nodes, func(t *testing.T) {
			err := ranksOnNodes(t.Context(), nodes, len(nodes), func(ctx context.Context, g *Group) error {
				if g.Transport() != want {
					return fmt.Errorf("the transport is %s, want %s", g.Transport(), want)
				}
				if local := strings.Count(nodes, nodes[g.Rank():g.Rank()+1]); g.LocalSize() != local {
					return fmt.Errorf("%d ranks are on this node, want %d", g.LocalSize(), local)
				}
				all := make([]int, g.Size())
				for r := range all {
					all[r] = r
				}
				for _, count := range []int{1, 100, 5000, 300_003} {
					if err := sumOver(ctx, g, all, g.Rank(), count); err != nil {
						return err
					}
				}
				return groupsAtOnce(ctx, g)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAnyMessageOverMixedLinks receives from whichever rank sends first, local
// or not.
func TestAnyMessageOverMixedLinks(t *testing.T) {
	t.Parallel()
	const rounds = 5
	err := ranksOnNodes(t.Context(), "aabb", 4, func(ctx context.Context, g *Group) error {
		x := private(tensor.Int64, 3)
		if g.Rank() != 0 {
			for range rounds {
				fill(x, func(int) float64 { return float64(g.Rank()) })
				if err := g.Send(ctx, x, 0); err != nil {
					return err
				}
			}
			return g.Barrier(ctx)
		}
		var got []int
		for range rounds * (g.Size() - 1) {
			src, err := g.RecvAny(ctx, x)
			if err != nil {
				return err
			}
			if err := check("a message", x, func(int) int64 { return int64(src) }); err != nil {
				return err
			}
			got = append(got, src)
		}
		slices.Sort(got)
		for i, src := range got {
			if src != 1+i/rounds {
				return fmt.Errorf("messages came from %v", got)
			}
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}
