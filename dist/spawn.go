// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/internal/native"
)

// maxSpawn bounds the ranks of one process: each has its block of memory.
const maxSpawn = 1 << 14

// Spawn runs main once for each of n ranks, as goroutines of this process that
// form a group, and returns when all have returned: tests, notebooks, and
// several devices in one process. The group is closed when main returns.
//
// The first rank that fails gives the error: the others' errors, which name
// that rank, only follow from it. A panic in main is an error of its rank, and so
// is the end of main's goroutine, as by a test's FailNow. The options are
// [WithTimeout] and [WithDeterministic].
func Spawn(ctx context.Context, n int, main func(ctx context.Context, g *Group) error, opts ...Option) error {
	return spawn(ctx, n, native.GoRanksOptions{}, main, opts)
}

func spawn(ctx context.Context, n int, how native.GoRanksOptions, main func(context.Context, *Group) error, opts []Option) error {
	if n < 1 || n > maxSpawn {
		return fmt.Errorf("dist: Spawn of %d ranks: want 1 to %d", n, maxSpawn)
	}
	o := options{forGroup: true, Settings: backend.Settings{Timeout: DefaultTimeout, Silence: DefaultSilence}}
	if err := o.apply(opts); err != nil {
		return fmt.Errorf("dist: Spawn of %d ranks: %w", n, err)
	}
	if o.name != "" {
		return fmt.Errorf("dist: Spawn of %d ranks: WithName is for the groups made by NewGroup", n)
	}
	if name := o.backendFor(hostKind); name != backends[0].name {
		return fmt.Errorf("dist: Spawn of %d ranks: WithBackend: goroutines of one process have the backend %q for the memory of the host, not %q", n, backends[0].name, name)
	}
	groups := goGroups(ctx, n, how, &o)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, g := range groups {
		wg.Go(func() {
			err := errGoexit // unless main returns
			defer func() {
				if err == nil {
					_ = g.Close()
					return
				}
				g.fail(err)
				_ = g.Close()
				mu.Lock()
				defer mu.Unlock()
				if first == nil || backend.IsConsequence(first) && !backend.IsConsequence(err) {
					first = fmt.Errorf("rank %d: %w", g.rank, err)
				}
			}()
			err = runRank(ctx, g, main)
		})
	}
	wg.Wait()
	return first
}

// goGroups returns the group of all ranks for each of n goroutine ranks.
func goGroups(ctx context.Context, n int, how native.GoRanksOptions, o *options) []*Group {
	groups := make([]*Group, n)
	var all ranks
	for r, job := range meeting.Goroutines(n, how, &o.Settings) {
		roster, forming, _ := job.Meet(ctx, nil, nil) // which cannot fail: the ranks are there
		if r == 0 {
			all = ranksOf(roster.Where)
		}
		g := newWorld(job, roster, all, o)
		g.localRank, g.localSize = r, n
		g.openLog()
		_ = forming.End(ctx, g.form(ctx, nil, forming, nil)) // likewise
		g.watchCalls()
		groups[r] = g
	}
	return groups
}

var errGoexit = errors.New("its goroutine was ended (by runtime.Goexit, or FailNow of a test): return an error instead")

// runRank calls main and makes an error of a panic.
func runRank(ctx context.Context, g *Group, main func(context.Context, *Group) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			if e, ok := v.(error); ok {
				err = fmt.Errorf("panic: %w\n%s", e, debug.Stack())
				return
			}
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return main(ctx, g)
}
