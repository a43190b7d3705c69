// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

var pytorchSeed = flag.Uint64("pytorch.seed", 1, "the seed of what is run with PyTorch")

// alike are the operations that PyTorch ranks play too, by whether 1.13 has them.
var alike = []struct {
	name   string
	in1_13 bool
}{
	{"barrier", true}, {"monitored_barrier", true}, {"all_reduce", true}, {"all_reduce_coalesced", true}, {"reduce", true},
	{"reduce_scatter", false}, {"reduce_scatter_list", false}, {"broadcast", true}, {"broadcast_coalesced", true},
	{"all_gather", true}, {"all_gather_list", true}, {"all_gather_coalesced", true}, {"gather", true}, {"scatter", true},
	{"all_to_all", true}, {"all_to_all_single", true}, {"send", true}, {"recv_any", true}, {"batch", true},
}

func operationNamed(name string) operation {
	i := slices.IndexFunc(operations, func(o operation) bool { return o.name == name })
	return operations[i]
}

// canPlay reports whether a PyTorch rank can take part in a run.
func (p *python) canPlay(c one) bool {
	kind := pytorch2
	if p.old() {
		kind = pytorch1_13
	}
	for _, a := range alike {
		if a.name == c.op.name {
			messages := slices.Contains([]string{"send", "recv_any", "batch"}, a.name)
			if p.old() && (!a.in1_13 || !messages && (c.dtype == tensor.BFloat16 || c.dtype == tensor.Bool)) {
				return false
			}
			if c.parts != "even" && c.op.uneven && !slices.Contains([]string{"all_to_all", "all_to_all_single", "reduce_scatter_list"}, a.name) {
				return false
			}
			if !c.op.reduces {
				return true
			}
			switch c.reduce {
			case Avg:
				return kind != pytorch1_13 && isFloat(dtypeOf[c.dtype])
			case BAnd, BOr, BXor:
				return !isFloat(dtypeOf[c.dtype])
			case Sum, Product, Min, Max:
				return true
			}
			return false
		}
	}
	return false
}

// both plays runs on both sides of a job.
func (m mixedJob) both(t *testing.T, runs []one) {
	t.Helper()
	var steps []pyStep
	for _, c := range runs {
		steps = append(steps, pyOf(c, 0))
	}
	o := m.run(t, steps, func(ctx context.Context, g *Group) error {
		for i, c := range runs {
			if err := c.run(ctx, g); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
		return nil
	})
	if err := o.err(); err != nil {
		t.Error(err)
	}
}

// pytorchSizes are numbers of elements: within a segment, several, many.
var pytorchSizes = []int{1, 2, 3, 64, 1000, 4097, 70_001, 300_003}

// sample returns runs of every operation with what else they may have drawn.
func (p *python) sample(rng *rand.Rand, times int) (runs []one) {
	for range times {
		for _, a := range alike {
			c := one{op: operationNamed(a.name)}
			for try := 0; ; try++ {
				c.dtype, c.reduce = dtypes[rng.IntN(len(dtypes))], reductions[rng.IntN(len(reductions))]
				c.layout, c.count = layouts[rng.IntN(len(layouts))], pytorchSizes[rng.IntN(len(pytorchSizes))]
				c.parts, c.async = partings[rng.IntN(len(partings))], rng.IntN(3) == 0
				if !c.op.uneven {
					c.parts = "even"
				}
				if p.canPlay(c) {
					runs = append(runs, c)
					break
				}
				if try == 200 { // it has no such operation
					break
				}
			}
		}
	}
	return runs
}

// TestPyTorchOperations runs jobs of 2 to 5 ranks with a Go rank in every place
// and every operation, over a sample of types, reductions, sizes and forms; both
// sides compare with what must come out.
func TestPyTorchOperations(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		seed := *pytorchSeed
		t.Logf("seed %d", seed)
		for size := 2; size <= 5; size++ {
			for place := range size {
				t.Run(fmt.Sprintf("%d/%d", size, place), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, uint64(size*10+place)))
					mixedJob{python: p, size: size, goes: []int{place}}.both(t, p.sample(rng, 1))
				})
			}
		}
	})
}
