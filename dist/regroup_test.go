// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	regroupTrials = flag.Int("regroup.trials", 1, "how often TestRegroup takes two ranks away over each kind of link")
	regroupSeed   = flag.Uint64("regroup.seed", 1, "the seed of TestRegroup; 0 for one of today")
)

// regroup runs collectives until a rank is lost, and goes on in a group of those
// that are left, as documentation tells programs to.
func regroup(ctx context.Context, world *Group) error {
	x := private(tensor.Int64, 2_000)
	var err error
	for i := 0; err == nil; i++ {
		if i == 10 {
			fmt.Println("ready")
		}
		err = world.AllReduce(ctx, x, Max)
	}
	alive := world.Ranks()
	g := world
	for err != nil {
		fmt.Printf("heard: %v\n", err)
		var lost *RankError
		if !errors.As(err, &lost) || lost.JobRank() == world.Rank() {
			return err
		}
		i := slices.Index(alive, lost.JobRank())
		if i < 0 {
			return fmt.Errorf("rank %d is blamed again: %w", lost.JobRank(), err)
		}
		alive = slices.Delete(alive, i, i+1)
		g, err = world.NewGroup(ctx, alive)
	}
	fill(x, func(int) float64 { return 1 })
	if err := g.AllReduce(ctx, x, Sum); err != nil {
		return err
	}
	if err := check("the sum of the group", x, func(int) int64 { return int64(g.Size()) }); err != nil {
		return err
	}
	fmt.Printf("went on with %v at %d ns\n", g.Ranks(), time.Now().UnixNano())
	return g.Barrier(ctx)
}

// TestRegroup takes two ranks away at once, by SIGKILL, from jobs of 3 to 8 that
// nobody watches from outside, over every kind of link: all others end in one
// group, of themselves. -regroup.trials makes more of them.
func TestRegroup(t *testing.T) {
	seed := *regroupSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-regroup.seed %d", seed)
	const most = 2 * time.Second
	for k, kind := range silenceKinds {
		t.Run(kind.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			var took []time.Duration
			for range *regroupTrials {
				n := 3 + rng.IntN(6)
				victims := rng.Perm(n)[:2]
				slices.Sort(victims)
				env := []string{envvar.Transport.Assign(kind.transport)}
				if kind.nodes != "" {
					env = append(env, rankNodes+"="+kind.nodes)
				}
				took = append(took, takeTwo(t, n, victims, env))
			}
			slices.Sort(took)
			t.Logf("%-5s %3d trials: median %v, longest %v", kind.name, len(took), took[len(took)/2], took[len(took)-1])
			if longest := took[len(took)-1]; longest > loaded.Allow(most) {
				t.Errorf("that is more than %v", most)
			}
		})
	}
}

// takeTwo kills two of n ranks at once and returns after what time all others
// have gone on.
func takeTwo(t *testing.T, n int, victims []int, env []string) time.Duration {
	t.Helper()
	// Without an agent, which would be waited for to tell how ranks died.
	alone := func(int) []string { return []string{"env", "-u", string(envvar.AgentFD)} }
	ps := startRanksBy(t, n, "regroup", alone, env...)
	for _, p := range ps {
		p.saidLine(t, "ready", 30*time.Second)
	}
	begun := time.Now()
	for _, r := range victims {
		if err := ps[r].cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	var alive []int
	for r := range n {
		if !slices.Contains(victims, r) {
			alive = append(alive, r)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			for r, p := range ps {
				out, _, _ := strings.Cut(p.output(), "SIGQUIT")
				t.Logf("ranks %v of %d killed; rank %d said:\n%s", victims, n, r, out)
			}
		}
	})
	last := begun
	for _, r := range alive {
		said := ps[r].saidLine(t, fmt.Sprintf("went on with %v at ", alive), 20*time.Second)
		var ns int64
		if _, err := fmt.Sscan(strings.TrimSuffix(said, " ns"), &ns); err != nil {
			t.Fatal(err)
		}
		if at := time.Unix(0, ns); at.After(last) {
			last = at
		}
		if err := ps[r].await(t, 20*time.Second); err != nil {
			t.Errorf("ranks %v of %d killed: rank %d: %v\n%s", victims, n, r, err, ps[r].output())
		}
	}
	took := last.Sub(begun).Round(time.Millisecond)
	if testing.Verbose() {
		t.Logf("ranks %v of %d: %v went on after %v", victims, n, alive, took)
	}
	return took
}
