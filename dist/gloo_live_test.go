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
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/pytorch"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	pytorchSeed      = flag.Uint64("pytorch.seed", 1, "the seed of what is run with PyTorch")
	wholePyTorch     = flag.Bool("pytorch.product", false, "run every operation with PyTorch over all types, reductions and sizes, and every way to meet")
	allPyTorch       = flag.Bool("pytorch.all", false, "run jobs of 2 to 5 ranks with PyTorch, not of 3 alone")
	pytorchSequences = flag.Uint64("pytorch.sequences", 2, "how many random sequences to play with PyTorch")
)

// alike are the operations that PyTorch ranks play too, by the version that has them first.
var alike = []struct {
	name  string
	since pytorch.Release
}{
	{"barrier", pytorch.Release1_13}, {"monitored_barrier", pytorch.Release1_13}, {"all_reduce", pytorch.Release1_13}, {"all_reduce_coalesced", pytorch.Release1_13},
	{"reduce", pytorch.Release1_13}, {"reduce_scatter", 203}, {"reduce_scatter_list", 208}, {"broadcast", pytorch.Release1_13},
	{"broadcast_coalesced", pytorch.Release1_13}, {"all_gather", pytorch.Release1_13}, {"all_gather_list", pytorch.Release1_13}, {"all_gather_coalesced", pytorch.Release1_13},
	{"gather", pytorch.Release1_13}, {"scatter", pytorch.Release1_13}, {"all_to_all", pytorch.Release1_13}, {"all_to_all_single", pytorch.Release1_13},
	{"send", pytorch.Release1_13}, {"recv_any", pytorch.Release1_13}, {"batch", pytorch.Release1_13},
}

func operationNamed(name string) operationCase {
	i := slices.IndexFunc(operations, func(o operationCase) bool { return o.name == name })
	return operations[i]
}

// canPlay reports whether a PyTorch rank can take part in a run.
func (p *python) canPlay(c one) bool {
	kind := p.kind()
	for _, a := range alike {
		if a.name == c.op.name {
			messages := slices.Contains([]string{"send", "recv_any", "batch"}, a.name)
			if kind < a.since || p.old() && !messages && (c.dtype == tensor.BFloat16 || c.dtype == tensor.Bool) {
				return false
			}
			if c.parts != "even" && c.op.uneven && !slices.Contains([]string{"all_to_all", "all_to_all_single", "reduce_scatter_list"}, a.name) {
				return false
			}
			if !c.op.reduces {
				return true
			}
			if strings.HasPrefix(a.name, "reduce_scatter") && c.reduce != Sum && kind < 209 {
				return false
			}
			switch c.reduce {
			case Avg:
				return kind >= 208 && c.dtype.IsFloat()
			case BAnd, BOr, BXor:
				return !c.dtype.IsFloat()
			case Sum, Product, Min, Max:
				return true
			}
			return false
		}
	}
	return false
}

// mixedStep is what both sides of a job do next.
type mixedStep struct {
	c     one
	group int // 0: all ranks, n: the n-th that was made
	flies bool
	join  bool
	// ranks are those of a group to be made, where there are some; local says that
	// they alone make it.
	ranks []int
	local bool
}

func (s mixedStep) py() pyStep {
	if s.ranks != nil {
		return pyStep{Op: "new_group", Ranks: s.ranks, Local: s.local}
	}
	p := pyOf(s.c, s.group)
	p.Async, p.Flies, p.Join = s.c.async || s.flies, s.flies, s.join
	return p
}

// playSteps plays a Go rank's part.
func playSteps(ctx context.Context, world *Group, steps []mixedStep) error {
	groups := []*Group{world}
	var flying sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	defer flying.Wait()
	for i, s := range steps {
		fail := func(err error) error { return fmt.Errorf("step %d: %w", i, err) }
		if s.ranks != nil {
			var opts []Option
			if s.local {
				opts = append(opts, WithLocalSynchronization())
			}
			g, err := world.NewGroup(ctx, s.ranks, opts...)
			if err != nil {
				return fail(err)
			}
			if (g != nil) != slices.Contains(s.ranks, world.Rank()) {
				return fail(fmt.Errorf("a group of %v is %v on rank %d", s.ranks, g, world.Rank()))
			}
			groups = append(groups, g)
			continue
		}
		g := groups[s.group]
		if g != nil {
			c := s.c
			if s.flies {
				begun := make(chan struct{})
				c.async, c.started = true, sync.OnceFunc(func() { close(begun) })
				flying.Go(func() {
					defer c.started()
					if err := c.run(ctx, g); err != nil {
						mu.Lock()
						errs = append(errs, fail(err))
						mu.Unlock()
					}
				})
				<-begun
			} else if err := c.run(ctx, g); err != nil {
				return fail(err)
			}
		}
		if s.join {
			flying.Wait()
		}
	}
	flying.Wait()
	return errors.Join(errs...)
}

// both plays steps on both sides of a job.
func (m mixedJob) both(t *testing.T, steps []mixedStep) {
	t.Helper()
	var py []pyStep
	for _, s := range steps {
		py = append(py, s.py())
	}
	o := m.run(t, py, func(ctx context.Context, g *Group) error { return playSteps(ctx, g, steps) })
	if err := o.err(); err != nil {
		t.Error(err)
	}
}

// pytorchSizes are numbers of elements: within a segment, several, many.
var pytorchSizes = []int{1, 2, 3, 64, 1000, 4097, 70_001, 300_003}

// sample returns a step of every operation with what else it may have drawn.
func (p *python) sample(rng *rand.Rand, group int) (steps []mixedStep) {
	for _, a := range alike {
		if c, ok := p.draw(rng, a.name, len(pytorchSizes)); ok {
			steps = append(steps, mixedStep{c: c, group: group})
		}
	}
	return steps
}

// draw draws a run of an operation that the PyTorch rank can play, of one of the
// first sizes.
func (p *python) draw(rng *rand.Rand, name string, sizes int) (c one, ok bool) {
	c.op = operationNamed(name)
	for range 200 {
		c.dtype, c.reduce = dtypes[rng.IntN(len(dtypes))], reductions[rng.IntN(len(reductions))]
		c.layout, c.count = layouts[rng.IntN(len(layouts))], pytorchSizes[rng.IntN(sizes)]
		c.parts, c.async = partings[rng.IntN(len(partings))], rng.IntN(3) == 0
		if !c.op.uneven {
			c.parts = "even"
		}
		if p.canPlay(c) {
			return c, true
		}
	}
	return c, false
}

// product returns steps of every operation with all types, reductions and sizes, in
// forms that are drawn. The largest are of the operations and types that one trains with.
func (p *python) product(rng *rand.Rand, numRanks int) (steps []mixedStep) {
	sizes := append([]int{0, 5}, pytorchSizes...)
	for _, a := range alike {
		for _, d := range dtypes {
			for _, reduce := range reductions {
				c := one{op: operationNamed(a.name), dtype: d, reduce: reduce, parts: "even"}
				if !c.op.reduces && reduce != Sum || !p.canPlay(c) {
					continue
				}
				for _, c.count = range sizes {
					c.layout, c.async = layouts[rng.IntN(len(layouts))], rng.IntN(2) == 0
					if c.count > 100_000 && (d != tensor.Float32 || reduce != Sum) {
						continue
					}
					if c.count == 0 && (a.name == "recv_any" || p.old() && (a.name == "all_gather" || a.name == "all_gather_list")) {
						continue // which PyTorch refuses, or ends its process
					}
					if c.op.uneven {
						c.parts = partings[rng.IntN(len(partings))]
						if !p.canPlay(c) {
							c.parts = "even"
						}
					}
					steps = append(steps, mixedStep{c: c})
				}
			}
		}
	}
	for _, name := range []string{"all_reduce", "reduce", "broadcast", "all_gather", "send", "all_to_all_single"} {
		for _, count := range []int{262_144, 1_048_577, 10_000_000 / numRanks} {
			steps = append(steps, mixedStep{c: one{op: operationNamed(name), dtype: tensor.Float32, reduce: Sum, layout: "dense", count: count, parts: "even"}})
		}
	}
	return append(steps, mixedStep{c: one{op: operationNamed("all_reduce"), dtype: tensor.Float32, reduce: Sum, layout: "dense", count: 10_000_000}})
}

// TestPyTorchOperations runs jobs of 3 ranks with a Go rank in every place and every
// operation, over a sample of types, reductions, sizes and forms; both sides compare
// with what must come out. With jobs of 2 to 5 ranks, and with those and all of types,
// reductions and sizes up to 10 million elements, and a table:
//
//	go test ./dist -run TestPyTorchOperations -pytorch.all
//	go test ./dist -run TestPyTorchOperations -pytorch.product -timeout 2h -v
func TestPyTorchOperations(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, p *python) {
		seed := *pytorchSeed
		t.Logf("seed %d", seed)
		sizes := []int{3}
		if *allPyTorch || *wholePyTorch {
			sizes = []int{2, 3, 4, 5}
		}
		for _, size := range sizes {
			for place := range size {
				t.Run(fmt.Sprintf("%d/%d", size, place), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, uint64(size*10+place)))
					m := mixedJob{python: p, size: size, goes: []int{place}}
					if !*wholePyTorch {
						m.both(t, p.sample(rng, 0))
						return
					}
					m.limit = 30 * time.Minute
					begun, steps := time.Now(), p.product(rng, size)
					m.both(t, steps)
					fmt.Printf("%-24v %d ranks, Go is rank %d: %5d runs %6.1f s  %v\n", p, size, place, len(steps), time.Since(begun).Seconds(), map[bool]string{true: "FAILED", false: "ok"}[t.Failed()])
				})
			}
		}
	})
}

// TestPyTorchGroups makes groups of some ranks, of which Go's and PyTorch's are
// members or not, also such as only their members make, and uses them.
func TestPyTorchGroups(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, p *python) {
		for _, goes := range [][]int{{0}, {3}, {1, 2}, {0, 1, 3}} {
			t.Run(fmt.Sprint(goes), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(*pytorchSeed, 7))
				var steps []mixedStep
				for i, ranks := range [][]int{{0, 1}, {3, 1, 2}, {2}, {0, 3}, {0, 1, 2, 3}, {1, 2}} {
					steps = append(steps, mixedStep{ranks: ranks, local: i == 5 && !p.old()})
				}
				for group := range 7 {
					for range 4 {
						c, ok := p.draw(rng, alike[rng.IntN(len(alike))].name, 5)
						if group == 3 && !c.op.reduces { // of one rank
							c.op = operationNamed("all_reduce")
							c.reduce = Sum
						}
						if ok && p.canPlay(c) {
							steps = append(steps, mixedStep{c: c, group: group})
						}
					}
				}
				mixedJob{python: p, size: 4, goes: goes}.both(t, steps)
			})
		}
	})
}

// flies are the operations that may be under way while others begin.
var flies = []string{"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "broadcast", "all_gather", "all_gather_list", "gather",
	"scatter", "all_to_all", "all_to_all_single", "barrier"}

// TestPyTorchSequences plays 200 operations from a seed on both sides, on groups that
// overlap, with several under way at a time. More of them:
//
//	go test ./dist -run TestPyTorchSequences -pytorch.sequences 50 -v
func TestPyTorchSequences(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, p *python) {
		for i := range *pytorchSequences {
			seed := *pytorchSeed + i
			size := 2 + int(seed%4)
			t.Run(fmt.Sprintf("seed%d/%d", seed, size), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				sets := [][]int{nil}
				var steps []mixedStep
				for range 3 {
					set := rng.Perm(size)[:min(size, 2+rng.IntN(size-1))]
					sets = append(sets, set)
					steps = append(steps, mixedStep{ranks: set})
				}
				for len(steps) < 203 {
					c, ok := p.draw(rng, alike[rng.IntN(len(alike))].name, 6)
					if !ok {
						continue
					}
					s := mixedStep{c: c, group: rng.IntN(len(sets)), join: rng.IntN(12) == 0}
					s.flies = slices.Contains(flies, c.op.name) && rng.IntN(2) == 0
					steps = append(steps, s)
				}
				goes := rng.Perm(size)[:1+rng.IntN(size-1)]
				t.Logf("Go ranks %v, groups %v", goes, sets[1:])
				mixedJob{python: p, size: size, goes: goes}.both(t, steps)
			})
		}
	})
}
