// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	wholeProduct = flag.Bool("product", false, "run every operation over the whole product of what it is tested with, and print a table")
	caseSeed     = flag.Uint64("seed", 1, "the seed of the choice of runs; 0 for one of today")
)

var worldSizes = []int{1, 2, 3, 4, 5, 8, 16}

// A choice is an index into each of these. No index of a reduction or a parting
// counts where the operation has none.
const (
	byTransport = iota
	bySize
	byOperation
	byDType
	byReduction
	byLayout
	byCount
	byParting
	byForm
	numFactors
)

type choice [numFactors]int

func factorSizes() (n choice) {
	return choice{len(transports), len(worldSizes), len(operations), len(dtypes), len(reductions), len(layouts), len(numElems), len(partings), 2}
}

func (c choice) one(numRanks int) one {
	// Of many ranks each has less: the oracle's time grows with their square.
	most := 1_000_003
	if testing.Short() {
		most = 100_003
	}
	count := min(numElems[c[byCount]], most/(numRanks*numRanks))
	return one{operations[c[byOperation]], dtypes[c[byDType]], reductions[c[byReduction]], layouts[c[byLayout]],
		count, partings[c[byParting]], c[byForm] == 1, nil}
}

// has reports whether a factor matters to the chosen operation.
func (c choice) has(factor int) bool {
	op := operations[c[byOperation]]
	return (factor != byReduction || op.reduces) && (factor != byParting || op.uneven)
}

// pairwise returns choices in which every two values of two factors meet.
func pairwise(rng *rand.Rand) []choice {
	type pair struct{ f1, v1, f2, v2 int }
	covered := map[pair]bool{}
	sizes := factorSizes()
	pairs := func(c choice, visit func(pair)) {
		for f1 := range numFactors {
			for f2 := f1 + 1; f2 < numFactors; f2++ {
				if c.has(f1) && c.has(f2) {
					visit(pair{f1, c[f1], f2, c[f2]})
				}
			}
		}
	}
	var all []choice
	for f1 := range numFactors {
		for f2 := f1 + 1; f2 < numFactors; f2++ {
			for v1 := range sizes[f1] {
				for v2 := range sizes[f2] {
					if covered[pair{f1, v1, f2, v2}] {
						continue
					}
					// Of some choices with this pair, the one with the most new ones.
					var best choice
					most := 0
					for range 30 {
						var c choice
						for f := range c {
							c[f] = rng.IntN(sizes[f])
						}
						c[f1], c[f2] = v1, v2
						if !c.has(f1) || !c.has(f2) {
							continue
						}
						n := 0
						pairs(c, func(p pair) {
							if !covered[p] {
								n++
							}
						})
						if n > most {
							best, most = c, n
						}
					}
					if most > 0 {
						pairs(best, func(p pair) { covered[p] = true })
						all = append(all, best)
					}
				}
			}
		}
	}
	return all
}

// product returns all choices of an operation, a type, a reduction and a layout
// for a transport and a size; the rest is drawn for each of them.
func product(rng *rand.Rand, transport, size int) (all []choice) {
	sizes := factorSizes()
	c := choice{byTransport: transport, bySize: size}
	for {
		if c[byReduction] == 0 || c.has(byReduction) {
			for _, f := range []int{byCount, byParting, byForm} {
				c[f] = rng.IntN(sizes[f])
			}
			all = append(all, c)
		}
		f := byOperation
		for ; f <= byLayout; f++ {
			if c[f]++; c[f] < sizes[f] {
				break
			}
			c[f] = 0
		}
		if f > byLayout {
			return all
		}
	}
}

// TestOperations runs every operation over every transport, number of ranks,
// type, reduction, layout, size and form against the oracle: a choice in which
// every two of them meet. go test -run TestOperations ./dist -product -timeout
// 2h runs all there are of the first six, and prints a table.
func TestOperations(t *testing.T) {
	t.Parallel()
	seed := *caseSeed
	if seed == 0 {
		seed = uint64(time.Now().Unix() / (24 * 60 * 60))
	}
	t.Logf("seed %d", seed)
	runs := map[[2]int][]choice{}
	if !*wholeProduct {
		for _, c := range pairwise(rand.New(rand.NewPCG(seed, 0))) {
			runs[[2]int{c[byTransport], c[bySize]}] = append(runs[[2]int{c[byTransport], c[bySize]}], c)
		}
	}
	for tr := range transports {
		for size, n := range worldSizes {
			todo := runs[[2]int{tr, size}]
			if *wholeProduct {
				todo = product(rand.New(rand.NewPCG(seed, uint64(n))), tr, size)
			}
			if testing.Short() && n > 8 && transports[tr].name == "tls" {
				continue // some hundred handshakes, each of which has a limit
			}
			t.Run(fmt.Sprintf("%s/%d", transports[tr].name, n), func(t *testing.T) {
				start := time.Now()
				err := transports[tr].run(t.Context(), n, func(ctx context.Context, g *Group) error {
					for _, c := range todo {
						if err := c.one(g.Size()).run(ctx, g); err != nil {
							return fmt.Errorf("seed %d: %w", seed, err)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if *wholeProduct {
					fmt.Printf("%-12s %2d ranks %8d runs %8.1f s  %v\n", transports[tr].name, n, len(todo), time.Since(start).Seconds(), map[bool]string{true: "ok", false: "FAILED"}[err == nil])
				}
			})
		}
	}
}

// someOfEverything runs every operation a few times, on tensors that are not
// large.
func someOfEverything(ctx context.Context, g *Group) error {
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, 0)) // the same on every rank
	sizes := factorSizes()
	for op := range operations {
		for range 4 {
			var c choice
			for f := range c {
				c[f] = rng.IntN(sizes[f])
			}
			c[byOperation], c[byCount] = op, rng.IntN(slices.Index(numElems, 4097)+1)
			if err := c.one(g.Size()).run(ctx, g); err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
		}
	}
	return nil
}
