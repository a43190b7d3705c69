// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/errorfile"
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
	o := options{forGroup: true, timeout: DefaultTimeout, silence: DefaultSilence}
	if err := o.apply(opts); err != nil {
		return fmt.Errorf("dist: Spawn of %d ranks: %w", n, err)
	}
	if o.name != "" {
		return fmt.Errorf("dist: Spawn of %d ranks: WithName is for the groups made by NewGroup", n)
	}
	groups := goGroups(n, how, o)
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
				if first == nil || isConsequence(first) && !isConsequence(err) {
					first = fmt.Errorf("rank %d: %w", g.rank, err)
				}
			}()
			err = runRank(ctx, g, main)
		})
	}
	wg.Wait()
	return first
}

// goGroups returns a group for each of n goroutine ranks.
func goGroups(n int, how native.GoRanksOptions, o options) []*Group {
	host, _ := os.Hostname() // for messages only
	members, nodes, world := make([]Member, n), make([]string, n), make([]int, n)
	for r := range members {
		members[r], nodes[r], world[r] = Member{Rank: r, Host: host}, host, r
	}
	var ranks []*native.Shm
	if n > 1 {
		ranks = native.NewGoRanks(native.Config{Group: worldName, Key: worldName, Members: members, World: world, Timeout: o.timeout, Options: o.algorithms, Topology: collective.OneNode(n), Explain: explainer(worldName, 0)}, how)
	}
	shared, meetings := store.NewMemory(), goHome{native.NewGoMeetings(how)}
	groups := make([]*Group, n)
	for r := range groups {
		g := &Group{name: worldName, key: worldName, rank: r, size: n, localRank: r, localSize: n, node: host, nodes: nodes, members: members, world: world,
			transport: "none", home: meetings, timeout: o.timeout, silence: o.silence, algorithms: o.algorithms, base: shared, store: store.Prefix(shared, "user/")}
		if n > 1 {
			ranks[r].SetProgress(g.howFar)
			g.backend, g.transport = ranks[r], "goroutines"
		}
		g.init()
		g.openLog()
		if n > 1 {
			ranks[r].SetRecorder(g.log.Site, g.doing)
			g.watchCalls()
		}
		groups[r] = g
	}
	return groups
}

// goHome is the [home] of ranks that are goroutines of one process.
type goHome struct{ meetings *native.GoMeetings }

func (h goHome) open(_ context.Context, g *Group, cfg native.Config) (collective.Backend, string, error) {
	cfg.Topology = collective.OneNode(g.size)
	s, err := h.meetings.Join(cfg)
	if err != nil {
		return nil, "", err
	}
	return s, "goroutines", nil
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

// isConsequence reports whether an error is about another rank's failure.
func isConsequence(err error) bool {
	var re *fault.RankError
	return errors.As(err, &re)
}

// consequencePause is how long a rank that failed because of another one stays.
const consequencePause = 200 * time.Millisecond

// Main makes of a rank's main function what launch.Spawn runs: the group of all
// ranks is formed before it and left after it, and its error is put where the
// launcher looks for it (TORCHELASTIC_ERROR_FILE).
func Main(main func(ctx context.Context, g *Group) error, opts ...Option) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		g, err := Init(ctx, opts...)
		errorfile.Record(err, "")
		if isConsequence(err) {
			time.Sleep(consequencePause)
		}
		if err != nil {
			return err
		}
		err = main(ctx, g)
		errorfile.Record(err, "")
		if isConsequence(err) {
			// Let the launcher see the rank that failed first end first.
			time.Sleep(consequencePause)
		} else if err != nil {
			g.fail(err) // the other ranks' errors tell why
			err = g.sayOnce(ctx, err)
		}
		if closeErr := g.Close(); err == nil {
			err = closeErr
		}
		return err
	}
}
