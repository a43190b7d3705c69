// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/nearest"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// meshAxes are the axes of a mesh, outermost first.
var meshAxes = []string{"pp", "replicate", "fsdp", "ep", "cp", "tp"}

// strategyMesh is a strategy that is written as the axes of a mesh: "tp", "pp:zbv",
// "fsdp2.tp2". An axis without a number has the ranks that the others leave.
type strategyMesh struct {
	sizes    map[string]int // by axis; 0 is what the others leave
	order    []string       // the axes as they are written
	schedule string         // of the axis pp
	updaters int            // replicas that divide the update; 0 where each does all of it
}

// parseMesh reads a strategy.
func parseMesh(text string) (*strategyMesh, error) {
	m := &strategyMesh{sizes: map[string]int{}}
	open := ""
	for part := range strings.SplitSeq(text, ".") {
		axis, name, has := strings.Cut(part, ":")
		word := strings.TrimRight(axis, "0123456789")
		if !slices.Contains(meshAxes, word) {
			known := slices.Concat(namedStrategies(), []string{"diloco"}, meshAxes)
			hint := ": want"
			if best := nearest.Name(word, known); best != "" {
				hint = fmt.Sprintf(", did you mean %s? Want", best)
			}
			return nil, fmt.Errorf("no strategy %q%s one of %s, or a mesh of %s such as fsdp2.tp2 or pp:zbv",
				text, hint, strings.Join(append(namedStrategies(), "diloco:H"), ", "), strings.Join(meshAxes, ", "))
		}
		if _, twice := m.sizes[word]; twice {
			return nil, fmt.Errorf("strategy %q names the axis %s twice", text, word)
		}
		size := 0
		if digits := axis[len(word):]; digits != "" {
			var err error
			if size, err = strconv.Atoi(digits); err != nil || size < 1 {
				return nil, fmt.Errorf("strategy %q: the axis %s has the size %s: want 1 or more", text, word, digits)
			}
		} else if open != "" {
			return nil, fmt.Errorf("strategy %q leaves out the sizes of %s and %s: leave out one at most", text, open, word)
		} else {
			open = word
		}
		if has && word != "pp" {
			return nil, fmt.Errorf("strategy %q: the axis %s has no schedule; pp has one, such as pp:1f1b", text, word)
		}
		if word == "pp" {
			m.schedule = "1f1b"
		}
		if has {
			if m.schedule = name; !slices.Contains(schedule.Names(), name) {
				_, err := schedule.New(name, 1, 1, 1)
				return nil, fmt.Errorf("strategy %q: %w", text, err)
			}
		}
		m.sizes[word], m.order = size, append(m.order, word)
	}
	return m, nil
}

// suits reports an axis that has nothing to share in a model.
func (m *strategyMesh) suits(model string) error {
	for _, a := range []struct {
		axis, has string
		models    []string
	}{
		{"ep", "experts", []string{"moe"}},
		{"cp", "sequence", []string{"gpt", "llama", "moe"}},
		{"tp", "plan of tensor parallelism", []string{"gpt", "llama", "moe"}},
	} {
		if _, there := m.sizes[a.axis]; there && !slices.Contains(a.models, model) {
			return fmt.Errorf("the model %s has no %s for the axis %s: take %s", model, a.has, a.axis, strings.Join(a.models, ", "))
		}
	}
	return nil
}

// meshOf returns the mesh that a strategy makes of so many ranks.
func meshOf(strategy string, numRanks int) (m *strategyMesh, err error) {
	if every, err := islandSteps(strategy); every > 0 || err != nil {
		return &strategyMesh{sizes: map[string]int{"replicate": numRanks}}, err
	}
	switch strategy {
	case "single", "ddp":
		return &strategyMesh{sizes: map[string]int{"replicate": numRanks}}, nil
	case "dp":
		return &strategyMesh{sizes: map[string]int{}}, nil
	case "zero1":
		return &strategyMesh{sizes: map[string]int{"replicate": numRanks}, updaters: numRanks}, nil
	case "hsdp":
		shards := min(2, numRanks)
		return &strategyMesh{sizes: map[string]int{"replicate": numRanks / shards, "fsdp": shards}}, nil
	}
	if m, err = parseMesh(strategy); err == nil {
		err = m.fit(numRanks)
	}
	return m, err
}

// fit settles the size that is left out. The product of the sizes is the number of ranks.
func (m *strategyMesh) fit(numRanks int) error {
	product, open := 1, ""
	var factors []string
	for _, axis := range m.order {
		size := m.sizes[axis]
		if size == 0 {
			open = axis
			factors = append(factors, axis+" ?")
			continue
		}
		product *= size
		factors = append(factors, fmt.Sprintf("%s %d", axis, size))
	}
	switch {
	case open != "" && numRanks%product != 0:
		return fmt.Errorf("%s = %d ranks: %d %% %d = %d; change the sizes or --ranks", strings.Join(factors, " × "), numRanks, numRanks, product, numRanks%product)
	case open == "" && product != numRanks:
		return fmt.Errorf("%s = %d ranks: the product is %d; change the sizes or --ranks", strings.Join(factors, " × "), numRanks, product)
	case open != "":
		m.sizes[open] = numRanks / product
	}
	return nil
}

// make spreads a model over the ranks of a group. example is an input of a microbatch.
func (m *strategyMesh) make(ctx context.Context, model any, group *dist.Group, example *tensor.Tensor) (parallel.Strategy, error) {
	grid, err := parallel.NewMesh(ctx, group, parallel.Sizes{
		PP: m.size("pp"), Replicate: m.size("replicate"), FSDP: m.size("fsdp"), EP: m.size("ep"), CP: m.size("cp"), TP: m.size("tp"),
	})
	if err != nil {
		return nil, err
	}
	var c parallel.Config
	if m.size("pp") > 1 {
		c.Pipeline = parallel.PipelineConfig{Schedule: m.schedule, Example: []*tensor.Tensor{example.ToDevice(tensor.Meta)}}
	}
	return parallel.Parallelize(ctx, model, grid, c)
}

// numBatches returns how many batches of their own the ranks take.
func (m *strategyMesh) numBatches() int { return m.size("replicate") * m.size("fsdp") * m.size("ep") }

// size returns the number of ranks of an axis, 1 for one that is not there.
func (m *strategyMesh) size(axis string) int { return max(1, m.sizes[axis]) }
