// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/parallel/schedule"
)

var numEquivalent = flag.Int("equivalent", 6, "how many rows TestEquivalenceOfMeshes draws of its table; 0 is all")

// meshRow is a mesh, and what one asks of it.
type meshRow struct {
	name   string // the axes it is for come first
	change func(d *meshDraw)
}

// equivalentNet is the model of the table: attention in heads, norms, a vocabulary and a width that
// nothing divides.
func equivalentNet() meshDraw {
	one := allSizes(1, nil)[0]
	return meshDraw{
		Seed: 11, Microbatches: 1, Time: 24, Optimizer: "adamw", Steps: 30, Sizes: one, Reloaded: one, Embedding: "vocabulary", Method: "ring",
		Net: netDraw{
			Vocabulary: 1009, Width: 33, Positions: "rotary",
			Blocks: []netBlockDraw{
				{Heads: 4, KeyHeads: 4, HeadDim: 4, Hidden: 24, Gated: true}, {Heads: 8, KeyHeads: 4, HeadDim: 2, Hidden: 20},
				{Heads: 4, KeyHeads: 4, HeadDim: 2, Hidden: 12}, {Heads: 4, KeyHeads: 4, HeadDim: 4, Hidden: 12},
			},
		},
	}
}

// meshRows are the rows of the table.
func meshRows() []meshRow {
	var rows []meshRow
	add := func(name string, z lawSizes, changes ...func(d *meshDraw)) {
		rows = append(rows, meshRow{name, func(d *meshDraw) {
			for _, axis := range allAxes {
				*axisSize(&d.Sizes, axis) = max(1, *axisSize(&z, axis))
			}
			for i := 0; z.EP > 1 && i < len(d.Net.Blocks); i += 2 {
				b := &d.Net.Blocks[i]
				b.Experts, b.Active, b.Shared = 8, 2, i == 2
			}
			for _, change := range changes {
				change(d)
			}
		}})
	}
	sequence := func(d *meshDraw) { d.Sequence = true }
	whole := func(d *meshDraw) { d.WholeLogits = true }
	heads := func(d *meshDraw) { d.Method = "heads" }
	twelve := func(d *meshDraw) {
		for i := range d.Net.Blocks {
			d.Net.Blocks[i].Heads, d.Net.Blocks[i].KeyHeads = 12, 12
		}
	}
	pipeline := func(name string, numStages, numMicrobatches int) func(d *meshDraw) {
		return func(d *meshDraw) {
			d.Schedule, d.Stages, d.Microbatches = name, numStages, numMicrobatches
			for len(d.Net.Blocks) < numStages {
				d.Net.Blocks = append(d.Net.Blocks, d.Net.Blocks[:4]...)
			}
		}
	}
	add("replicate 2", lawSizes{Replicate: 2})
	add("fsdp 4", lawSizes{FSDP: 4})
	for _, n := range []int{2, 4} {
		add(fmt.Sprint("tp ", n), lawSizes{TP: n})
		add(fmt.Sprint("tp ", n, " with sequence"), lawSizes{TP: n}, sequence)
		add(fmt.Sprint("tp ", n, " with whole logits"), lawSizes{TP: n}, whole)
		for _, name := range schedules {
			numStages := n
			if name != "gpipe" && name != "1f1b" {
				numStages = 2 * n
			}
			for _, k := range []int{n, 2*n + 1} {
				if _, err := schedule.New(name, n, numStages, k); err != nil {
					k += n - 1 // interleaved schedules have rounds of equal size
				}
				add(fmt.Sprintf("pp %d %s of %d", n, name, k), lawSizes{PP: n}, pipeline(name, numStages, k))
			}
		}
	}
	for _, n := range []int{2, 3, 4} {
		add(fmt.Sprint("cp ", n, " ring"), lawSizes{CP: n})
		add(fmt.Sprint("cp ", n, " heads"), lawSizes{CP: n}, heads, twelve)
	}
	add("ep 2", lawSizes{EP: 2})
	add("ep 4", lawSizes{EP: 4})
	for i, a := range allAxes {
		for _, b := range allAxes[i+1:] {
			var z lawSizes
			*axisSize(&z, a), *axisSize(&z, b) = 2, 2
			changes := []func(d *meshDraw){sequence}
			if a == "pp" {
				changes = append(changes, pipeline("1f1b", 2, 3))
			}
			add(fmt.Sprintf("%s 2 × %s 2", a, b), z, changes...)
		}
	}
	add("pp 2 × fsdp 2 × tp 2", lawSizes{PP: 2, FSDP: 2, TP: 2}, sequence, pipeline("interleaved", 4, 4))
	add("fsdp 2 × ep 2 × cp 2", lawSizes{FSDP: 2, EP: 2, CP: 2})
	return rows
}

// TestEquivalenceOfMeshes: 30 steps on a mesh have the losses of one rank with the same batches, within
// 1e-5 of them in float32 and 2e-2 in bfloat16, and the first step has its gradients.
//
//	go test ./parallel -run TestEquivalenceOfMeshes -equivalent 0 -v
func TestEquivalenceOfMeshes(t *testing.T) {
	t.Parallel()
	rows := slices.DeleteFunc(meshRows(), func(r meshRow) bool { return !hasAxes(r.name, meshAxes) })
	r := rand.New(rand.NewPCG(seeded.Of(t), 5))
	if *numEquivalent > 0 {
		r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		rows = rows[:min(*numEquivalent, len(rows))]
	}
	alone, tied := make(map[string]outcome), make(map[string]bool) // by the draw without its mesh
	for _, row := range rows {
		for _, bfloat16 := range []bool{false, true} {
			d := equivalentNet()
			row.change(&d)
			if d.BFloat16 = bfloat16; testing.Short() {
				d.Steps = 2
			}
			if bfloat16 && *numEquivalent > 0 && r.IntN(3) > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s", row.name, map[bool]string{false: "float32", true: "bfloat16"}[bfloat16]), func(t *testing.T) {
				var err error
				for range 5 {
					key := d.aloneKey()
					if _, has := alone[key]; !has {
						alone[key], err = d.alone(t.Context(), 0)
						if tied[key] = errors.Is(err, errTie); err != nil && !tied[key] {
							t.Fatal(err)
						}
					}
					var got outcome
					if got, err = d.onRanks(t, d.Sizes, nil, ""); err != nil {
						t.Fatal(err)
					}
					var worst float64
					if worst, err = d.closeLosses(got, alone[key]); err == nil {
						t.Logf("losses differ by at most %.1e", worst)
						return
					} else if !tied[key] {
						break
					}
					d.Seed++ // a router was about to choose otherwise
				}
				t.Error(err)
			})
		}
	}
}

// aloneKey is what one rank's training depends on.
func (d meshDraw) aloneKey() string {
	return fmt.Sprint(d.Seed, d.Sequence && d.Sizes.TP > 1, numSamples(d.Sizes), d.Microbatches, d.Time, d.Net, d.Sizes.PP > 1, d.BFloat16, d.Steps)
}

// closeLosses compares what two trainings gave, and returns by how much losses differ.
func (d meshDraw) closeLosses(got, want outcome) (worst float64, err error) {
	limit, gradients := 1e-5, 1e-4
	if d.BFloat16 {
		limit, gradients = 2e-2, 5e-2
	}
	for i := range got.losses {
		off := math.Abs(got.losses[i]-want.losses[i]) / want.losses[i]
		if worst = max(worst, off); !(off <= limit) {
			return worst, fmt.Errorf("step %d: the loss is %v, want %v", i, got.losses[i], want.losses[i])
		}
	}
	largest, least := 0.0, make(map[string]float64)
	for _, g := range want.grads {
		for _, e := range g.elements {
			largest = max(largest, math.Abs(e))
		}
	}
	for name := range want.grads { // some are zero but for rounding
		least[name] = limit / 10 * largest
	}
	return worst, closeParts("gradient of ", got.grads, want.grads, gradients, least)
}

// allAxes are the axes of a mesh, outermost first.
var allAxes = []string{"pp", "replicate", "fsdp", "ep", "cp", "tp"}

// hasAxes reports whether the axes that a row names are all in use.
func hasAxes(name string, in []string) bool {
	for _, word := range strings.Fields(name) {
		if slices.Contains(allAxes, word) && !slices.Contains(in, word) {
			return false
		}
	}
	return true
}
