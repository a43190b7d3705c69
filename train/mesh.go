// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// The axes of a run's mesh. Ranks of the axis fsdp hold shards of the parameters, the
// gradients and the optimizer's state; ranks of the axis replicate hold the same.
const (
	axisReplicate = "replicate"
	axisFSDP      = "fsdp"
)

// meshShape is how the ranks of a run are arranged: replicate × fsdp = ranks. A number
// of 0 was left out.
type meshShape struct{ replicate, fsdp, ranks int }

// solve fills in what was left out. The axes that are left out become 1, unless the
// number of ranks says more; then it is replicate that takes what fsdp leaves.
func (m meshShape) solve() (meshShape, error) {
	fail := func(why string) (meshShape, error) {
		return m, fmt.Errorf("%v: %s; leave one of the three out and it follows", m, why)
	}
	if m.ranks == 0 {
		m.replicate, m.fsdp = max(m.replicate, 1), max(m.fsdp, 1)
		m.ranks = m.replicate * m.fsdp
	}
	if all := m.replicate * m.fsdp; all > 0 && all != m.ranks {
		return fail(fmt.Sprintf("the product is %d", all))
	}
	for _, known := range [2]int{m.replicate, m.fsdp} {
		if known > 0 && m.ranks%known != 0 {
			return fail(fmt.Sprintf("%d is no multiple of %d", m.ranks, known))
		}
	}
	solved := m
	switch {
	case m.fsdp > 0 && m.replicate == 0:
		solved.replicate = m.ranks / m.fsdp
	case m.fsdp == 0 && m.replicate > 0:
		solved.fsdp = m.ranks / m.replicate
	case m.fsdp == 0:
		solved.replicate, solved.fsdp = m.ranks, 1
	}
	return solved, nil
}

// String is the equation: "--replicate 2 × --fsdp 4 = --ranks 8".
func (m meshShape) String() string {
	text := func(name string, n int) string {
		if n == 0 {
			return "--" + name + " ?"
		}
		return fmt.Sprintf("--%s %d", name, n)
	}
	return text(axisReplicate, m.replicate) + " × " + text(axisFSDP, m.fsdp) + " = " + text("ranks", m.ranks)
}

// FillRanks sets the number of ranks by the axes, and the axes by the number of ranks.
// given has the settings that the user gave. A flag comes before a configuration file:
// where they do not agree, what the file says of replicate is left out, and then what it
// says of the ranks. task is for errors.
func (c *SharedConfig) FillRanks(task string, given map[string]string) error {
	m, err := c.shape(given)
	if err != nil {
		return fmt.Errorf("train %s: %w", task, err)
	}
	c.Replicate, c.FSDP, c.Ranks = m.replicate, m.fsdp, m.ranks
	return nil
}

// shape returns how the ranks are arranged.
func (c SharedConfig) shape(given map[string]string) (meshShape, error) {
	asked := meshShape{c.Replicate, c.FSDP, c.Ranks}
	if c.Replicate < 0 || c.FSDP < 0 || given["ranks"] != "" && c.Ranks < 1 {
		return asked, nil // what checks the settings says what they may be
	}
	if given["ranks"] == "" && c.Replicate+c.FSDP > 0 {
		asked.ranks = 0
	}
	m, err := asked.solve()
	if err == nil || given["ranks"] != config.Flag && given[axisReplicate] != config.Flag && given[axisFSDP] != config.Flag {
		return m, err // a file that does not agree with itself is wrong
	}
	for _, f := range []struct {
		name  string
		value *int
	}{{axisReplicate, &asked.replicate}, {"ranks", &asked.ranks}} {
		if from := given[f.name]; from == "" || from == config.Flag {
			continue
		}
		*f.value = 0
		if m, again := asked.solve(); again == nil {
			return m, nil
		}
	}
	return m, err
}

// arrange makes the settings those of a job of so many ranks. It is an error if the axes
// do not give this number.
func (c *SharedConfig) arrange(task string, numRanks int, given map[string]string) error {
	inJob := map[string]string{"ranks": config.Flag}
	for _, name := range []string{axisReplicate, axisFSDP} {
		inJob[name] = given[name]
	}
	c.Ranks = numRanks
	m, err := c.shape(inJob)
	if err != nil {
		return settled(fmt.Errorf("train %s: this job was started with %d %s, and %s", task, numRanks, plural(numRanks, "rank"),
			strings.ReplaceAll(err.Error(), "--ranks", "ranks")))
	}
	c.Replicate, c.FSDP = m.replicate, m.fsdp
	return nil
}

// newBuild returns what builds the model of a run. It is built on tensor.Meta, and each
// rank makes what it holds later, unless its weights are written first: by those of another
// model, say.
func (c SharedConfig) newBuild(written bool) *nn.Build {
	b := &nn.Build{Generator: tensor.NewGenerator(c.Seed)}
	if !written {
		b.Device = tensor.Meta
	}
	return b
}

// isOnMeta reports whether a model has parameters without values.
func isOnMeta(model any) bool {
	return slices.ContainsFunc(nn.Parameters(model), func(p *nn.Parameter) bool { return p.Data().Device() == tensor.Meta })
}

// runOn is Run with the model spread as the settings say: over a mesh with an axis fsdp, or
// as Run does it without one. fill reads values of the shards; nil for none.
func runOn[B any](ctx context.Context, c SharedConfig, group *dist.Group, task Task[B], fill func(parallel.Strategy) error, o Options, report Reporter) error {
	onMeta := isOnMeta(task.Model)
	if onMeta {
		if err := checkRanksMemory(ctx, task.Name, task.Model, c, group); err != nil {
			return settled(err)
		}
	}
	switch {
	case c.FSDP > 1:
		axes := []mesh.Axis{{Name: axisReplicate, Size: c.Replicate}, {Name: axisFSDP, Size: c.FSDP}}
		if c.Replicate == 1 {
			axes = axes[1:]
		}
		m, err := mesh.New(ctx, group, axes...)
		if err != nil {
			return fmt.Errorf("%s: %w", trainOf(task.Name), err)
		}
		defer m.Close()
		task.Strategy = func(ctx context.Context, model any, _ Axes) (parallel.Strategy, error) {
			f, err := parallel.FullyShard(ctx, model, m)
			if err == nil && onMeta {
				err = f.Materialize(ctx, tensor.CPU())
			}
			if err == nil && fill != nil {
				err = fill(f)
			}
			return f, err
		}
	case onMeta:
		if err := nn.Materialize(task.Model, tensor.CPU()); err != nil {
			return fmt.Errorf("%s: %w", trainOf(task.Name), err)
		}
	}
	return Run(ctx, group, task, o, report)
}
