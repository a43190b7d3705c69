// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// sumOver checks an all-reduce of a group against the sum over the numbers
// that its members have in the world.
func sumOver(ctx context.Context, g *Group, world []int, me, count int) error {
	x := filled(tensor.Int64, count, world[me])
	if err := g.AllReduce(ctx, x, Sum); err != nil {
		return err
	}
	return check(fmt.Sprintf("group %q, ranks %v of the world", g.Name(), world), x, func(i int) (want int64) {
		for _, r := range world {
			want += value(r, i)
		}
		return want
	})
}

// subsets are groups of ranks of a world of n, in which every rank is.
func subsets(n int) [][]int {
	all := make([]int, n)
	for r := range all {
		all[r] = n - 1 - r
	}
	var odd, even, first []int
	for r := range n {
		if r%2 == 0 {
			even = append(even, r)
		} else {
			odd = append(odd, r)
		}
		if r < (n+1)/2 {
			first = append(first, r)
		}
	}
	sets := [][]int{all, even, first}
	if len(odd) > 0 {
		sets = append(sets, odd)
	}
	return sets
}

// groupsAtOnce makes overlapping groups, runs collectives and messages on all
// of them at once, closes them, and does it again.
func groupsAtOnce(ctx context.Context, g *Group) error {
	for round := range 2 {
		var groups []*Group
		var worlds [][]int
		for _, set := range subsets(g.Size()) {
			if !slices.Contains(set, g.Rank()) {
				continue
			}
			sub, err := g.NewGroup(ctx, set)
			if err != nil {
				return err
			}
			if sub.Size() != len(set) || set[sub.Rank()] != g.Rank() || len(sub.Members()) != len(set) {
				return fmt.Errorf("%v of %v on rank %d", sub, set, g.Rank())
			}
			groups, worlds = append(groups, sub), append(worlds, set)
		}
		errs := make([]error, len(groups)+1)
		var wg sync.WaitGroup
		for i, sub := range groups {
			wg.Go(func() {
				for _, count := range []int{1, 1000, 70_001} {
					if errs[i] = sumOver(ctx, sub, worlds[i], sub.Rank(), count); errs[i] != nil {
						return
					}
				}
				errs[i] = messagesRoundTheRing(ctx, sub)
			})
		}
		all := make([]int, g.Size())
		for r := range all {
			all[r] = r
		}
		wg.Go(func() { errs[len(groups)] = sumOver(ctx, g, all, g.Rank(), 5000+round) })
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := g.Barrier(ctx); err != nil { // nobody needs the groups any more
			return err
		}
		for _, sub := range groups {
			if err := sub.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestGroupsAtOnce(t *testing.T) {
	t.Parallel()
	ranks := []int{1, 2, 3, 5}
	if testing.Short() {
		ranks = []int{2, 5}
	}
	onEveryTransport(t, ranks, groupsAtOnce)
}

// splitAndNest splits the world by parity in reversed order, splits the halves
// again, and leaves the last rank out of one.
func splitAndNest(ctx context.Context, g *Group) error {
	half, err := g.Split(ctx, g.Rank()%2, -g.Rank())
	if err != nil {
		return err
	}
	var world []int
	for r := g.Size() - 1; r >= 0; r-- {
		if r%2 == g.Rank()%2 {
			world = append(world, r)
		}
	}
	if half.Size() != len(world) || world[half.Rank()] != g.Rank() {
		return fmt.Errorf("rank %d is %v, want ranks %v", g.Rank(), half, world)
	}
	if err := sumOver(ctx, half, world, half.Rank(), 300); err != nil {
		return err
	}
	color := 7
	if half.Rank() == half.Size()-1 {
		color = -1
	}
	inner, err := half.Split(ctx, color, 0, WithName("inner"))
	if err != nil {
		return err
	}
	if color < 0 {
		if inner != nil {
			return fmt.Errorf("a negative color gave %v", inner)
		}
	} else {
		if inner.Name() != "inner" || inner.Size() != half.Size()-1 {
			return fmt.Errorf("the inner group is %v", inner)
		}
		if err := sumOver(ctx, inner, world[:half.Size()-1], inner.Rank(), 300); err != nil {
			return err
		}
		if err := inner.Store().Set(ctx, "k", []byte{1}); err != nil {
			return err
		}
	}
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	if half.Rank() == 0 {
		if current, ok, err := half.Store().CompareAndSet(ctx, "k", nil, []byte{2}); err != nil || !ok {
			return fmt.Errorf("two groups share the key of %s: %v", current, err)
		}
	}
	return g.Barrier(ctx) // closing the world closes the groups
}

func TestSplit(t *testing.T) {
	t.Parallel()
	onEveryTransport(t, []int{1, 2, 5}, splitAndNest)
}

// TestNewGroupArguments: what cannot be a group is an error at the call, and
// the group is as it was.
func TestNewGroupArguments(t *testing.T) {
	err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			for want, ranks := range map[string][]int{
				"no ranks":                              {},
				"ranks[1] is rank 3":                    {1, 3},
				"ranks[0] is rank -1":                   {-1, 1},
				"ranks[0] and ranks[2] are both rank 1": {1, 2, 1},
				"rank 1 is not among them":              {0, 2},
			} {
				if sub, err := g.NewGroup(ctx, ranks); err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Errorf("NewGroup(%v) gave %v, %v, want an error with %q", ranks, sub, err, want)
				}
			}
			for want, opt := range map[string]Option{
				"WithURL is an option of Init": WithURL("env://"),
				"WithNodeID is an option":      WithNodeID("x"),
				"want 1 to 200 bytes":          WithName(strings.Repeat("x", 201)),
				"a time limit of 0s":           WithTimeout(0),
			} {
				if _, err := g.NewGroup(ctx, []int{0, 1}, opt); err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Errorf("an option gave %v, want %q", err, want)
				}
			}
			limit, stop := context.WithTimeout(ctx, 10*time.Second)
			defer stop()
			if _, err := g.Split(limit, 0, 0, WithTimeout(0)); err == nil || !strings.Contains(err.Error(), "split of group \"world\" on rank 1: a time limit of 0s") {
				return fmt.Errorf("an option of Split gave %v", err)
			}
			over, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := g.NewGroup(over, []int{0, 1}); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("an ended context gave %v", err)
			}
		}
		sub, err := g.NewGroup(ctx, []int{0, 1, 2})
		if err != nil {
			return err
		}
		if err := sub.Close(); err != nil {
			return err
		}
		if _, err := sub.NewGroup(ctx, []int{sub.Rank()}); !errors.Is(err, ErrClosed) {
			return fmt.Errorf("a closed group gave %v", err)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := Init(t.Context(), WithName("x")); err == nil {
		t.Error("Init took a name")
	}
}

// TestGroupsFailAlone: the failure of a group leaves the others as they were.
func TestGroupsFailAlone(t *testing.T) {
	onEveryTransport(t, []int{3}, func(ctx context.Context, g *Group) error {
		sick, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("sick"))
		if err != nil {
			return err
		}
		well, err := g.NewGroup(ctx, []int{2, 1, 0}, WithName("well"))
		if err != nil {
			return err
		}
		if g.Rank() == 1 {
			sick.comm.Fail(errors.New("has had enough"))
		}
		var re *RankError
		if err := sick.Barrier(ctx); g.Rank() != 1 && (!errors.As(err, &re) || re.Rank != 1 || re.Group != "sick") {
			return fmt.Errorf("the barrier of the failed group gave %v", err)
		}
		for _, ok := range []*Group{well, g} {
			if err := ok.Barrier(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestGroupWithoutMember: a member that does not come is named when the time is up.
func TestGroupWithoutMember(t *testing.T) {
	t.Parallel()
	onEveryTransport(t, []int{3}, func(ctx context.Context, g *Group) error {
		if g.Rank() != 1 {
			limit, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			_, err := g.NewGroup(limit, []int{2, 0, 1})
			var other *RankError // the other has given up a moment before
			if !errors.As(err, &other) && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a group without rank 1 gave %v, want that a rank is late or has given up", err)
			}
		}
		return g.Barrier(ctx)
	})
}

// TestLateToAGroup: who comes when the others have given up is told at once, and
// what they had is given back.
func TestLateToAGroup(t *testing.T) {
	const num = 200
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		if g.Rank() == 1 {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			for range num {
				var left *RankError
				if _, err := g.NewGroup(ctx, []int{0, 1}); !errors.As(err, &left) || left.Rank != 0 || !errors.Is(err, ErrLeft) {
					return fmt.Errorf("a group that rank 0 has left gave %v", err)
				}
			}
			return nil
		}
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range num {
			limit, cancel := context.WithCancel(ctx)
			var giveUp sync.WaitGroup
			giveUp.Go(func() {
				for len(g.offspring()) == 0 { // it has not begun
					runtime.Gosched()
				}
				cancel()
			})
			_, err := g.NewGroup(limit, []int{0, 1})
			giveUp.Wait()
			if err == nil {
				return errors.New("a group was made by one of two")
			}
		}
		for range 3 { // pools outlive two
			runtime.GC()
		}
		runtime.ReadMemStats(&now)
		if grown := int64(now.HeapAlloc) - int64(before.HeapAlloc); grown > num*8<<10 {
			return fmt.Errorf("%d groups that nobody came to hold %d bytes", num, grown)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGroupOptionsDiffer: members must agree on what they make.
func TestGroupOptionsDiffer(t *testing.T) {
	t.Parallel()
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		limit, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var opts []Option
		if g.Rank() == 1 {
			opts = append(opts, WithDeterministic())
		}
		if sub, err := g.NewGroup(limit, []int{0, 1}, opts...); err == nil {
			return fmt.Errorf("made %v of members that do not agree", sub)
		} else if limit.Err() != nil {
			return err // nobody was told
		}
		return g.Barrier(ctx)
	})
}

// TestManyGroupsLeaveNothing makes and closes 200 groups of processes' links
// and compares the descriptors and mappings before and after. (Goroutines are
// checked at the end of this package's tests.)
func TestManyGroupsLeaveNothing(t *testing.T) {
	count := func(dir string) int {
		if dir == "/proc/self/maps" {
			text, err := os.ReadFile(dir)
			if err != nil {
				t.Skip(err)
			}
			return strings.Count(string(text), "memfd")
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Skip(err)
		}
		return len(entries)
	}
	groups := 200
	if testing.Short() {
		groups = 40
	}
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		var fds, maps int
		for i := range 2 + groups {
			if i == 2 { // what the first take for good
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				fds, maps = count("/proc/self/fd"), count("/proc/self/maps")
				if err := g.Barrier(ctx); err != nil {
					return err
				}
			}
			sub, err := g.NewGroup(ctx, []int{1, 0})
			if err != nil {
				return err
			}
			if err := sumOver(ctx, sub, []int{1, 0}, sub.Rank(), 10); err != nil {
				return err
			}
			if err := sub.Close(); err != nil {
				return err
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
		}
		// The other rank's ends of the last group's links may go a moment later.
		for begun := time.Now(); ; time.Sleep(time.Millisecond) {
			files, mapped := count("/proc/self/fd"), count("/proc/self/maps")
			if files <= fds+2 && mapped <= maps {
				return g.Barrier(ctx)
			}
			if time.Since(begun) > 10*time.Second {
				return fmt.Errorf("%d descriptors are open and %d shared mappings, %d and %d were before", files, mapped, fds, maps)
			}
		}
	})
}

// TestOverlappingGroups runs random collectives on random overlapping groups,
// from one goroutine each. What every rank makes and calls is in one script.
func TestOverlappingGroups(t *testing.T) {
	t.Parallel()
	seed := *caseSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	onEveryTransport(t, []int{4}, func(ctx context.Context, g *Group) error {
		rng := rand.New(rand.NewPCG(seed, 1))
		var wg sync.WaitGroup
		errs := make([]error, 12)
		for i := range errs {
			set := rng.Perm(g.Size())[:1+rng.IntN(g.Size())]
			counts := []int{rng.IntN(10), rng.IntN(30_000), rng.IntN(300_000)}
			if !slices.Contains(set, g.Rank()) {
				continue
			}
			sub, err := g.NewGroup(ctx, set)
			if err != nil {
				return err
			}
			wg.Go(func() {
				for _, count := range counts {
					if errs[i] = sumOver(ctx, sub, set, sub.Rank(), count); errs[i] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return g.Barrier(ctx)
	})
}

// TestGroupWithAMemberThatHasLeft: a member that has closed the group that the new
// one is made from cannot come, and is not waited for.
func TestGroupWithAMemberThatHasLeft(t *testing.T) {
	for _, gone := range []int{0, 1} {
		t.Run(fmt.Sprintf("rank%d", gone), func(t *testing.T) {
			failingAtOnce(t, 3, func(ctx context.Context, g *Group) error {
				if g.Rank() == gone {
					return g.Close()
				}
				_, err := g.NewGroup(ctx, []int{2, 1, 0})
				return err
			}, func(errs []error) error {
				for r, err := range errs {
					var other *RankError
					if r != gone && (!errors.As(err, &other) || !errors.Is(err, ErrLeft) || other.Rank != gone) {
						return fmt.Errorf("rank %d is not told that rank %d, a member, has left", r, gone)
					}
				}
				return errs[gone]
			})
		})
	}
}
