// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/config"
)

// The axes of a run's mesh, outermost first.
const (
	axisPP        = "pp"
	axisReplicate = "replicate"
	axisFSDP      = "fsdp"
	axisEP        = "ep"
	axisCP        = "cp"
	axisTP        = "tp"
)

var axisNames = [...]string{axisPP, axisReplicate, axisFSDP, axisEP, axisCP, axisTP}

// mostRanks is the largest number of ranks, and the largest size of an axis.
const mostRanks = 1 << 16

// MeshConfig says how the ranks of a run are arranged: the number of ranks is the product
// of the sizes of the axes. Ranks of the axes replicate, fsdp and ep take samples of their
// own. Ranks that differ only on the axes pp, cp and tp share the work on the same samples.
type MeshConfig struct {
	Replicate int  `json:"replicate" run:"here" group:"Mesh" usage:"copies of the model, each on --fsdp ranks; 0: what --ranks and the other axes leave, else 1"`
	FSDP      int  `json:"fsdp" run:"here" usage:"ranks among which parameters, gradients and optimizer state are split; 0: what --ranks and the other axes leave if --replicate is given, else 1"`
	TP        int  `json:"tp" run:"here" usage:"ranks that split each layer's matrices (tensor parallelism); 0: 1"`
	PP        int  `json:"pp" run:"here" usage:"ranks that split the layers into stages (pipeline parallelism); 0: 1"`
	EP        int  `json:"ep" run:"here" usage:"ranks that split the experts of a mixture of experts (expert parallelism); 0: 1"`
	CP        int  `json:"cp" run:"here" usage:"ranks that split each sequence (context parallelism); 0: 1"`
	ZeRO1     bool `json:"zero1" run:"here" usage:"replicas divide the state of the optimizer among them (ZeRO stage 1), and the work of its updates"`

	Hook string `json:"hook" run:"here" usage:"{HOOK} by which replicas average gradients over a slow link: bf16 or fp16 sends half the bytes, powersgd:RANK two narrow matrices for each gradient from step 1000 on, powersgd:RANK:STEP from step STEP on"`
	Join bool   `json:"-" flag:"join" run:"here" usage:"is refused: the ranks of these runs end at the same step; programs call DDP.Join"`
}

// size returns where the size of an axis stands.
func (c *MeshConfig) size(axis string) *int {
	return map[string]*int{axisPP: &c.PP, axisReplicate: &c.Replicate, axisFSDP: &c.FSDP, axisEP: &c.EP, axisCP: &c.CP, axisTP: &c.TP}[axis]
}

// sizes returns the sizes of the axes, in the order of axisNames.
func (c MeshConfig) sizes() (all [len(axisNames)]int) {
	for i, name := range axisNames {
		all[i] = *c.size(name)
	}
	return all
}

// copies returns how many ranks take each sample.
func (c MeshConfig) copies() int { return max(c.PP, 1) * max(c.CP, 1) * max(c.TP, 1) }

// composed returns an axis over which ranks share out more than samples and shards, "" for
// none.
func (c MeshConfig) composed() string {
	for _, name := range []string{axisTP, axisPP, axisEP, axisCP} {
		if *c.size(name) > 1 {
			return name
		}
	}
	return ""
}

func (c MeshConfig) isComposed() bool { return c.composed() != "" }

// onlyData refuses the axes over which the model of a recipe cannot be split.
func (c MeshConfig) onlyData(task, model string) error {
	if name := c.composed(); name != "" {
		return fmt.Errorf("train %s: --%s is %d, and %s is not split over the axis %s: leave --%s out, and use --replicate and --fsdp",
			task, name, *c.size(name), model, name, name)
	}
	return nil
}

// checkZeRO1 refuses ZeRO1 beside axes that divide the state already.
func (c MeshConfig) checkZeRO1(task string) error {
	for _, name := range axisNames {
		if n := *c.size(name); c.ZeRO1 && name != axisReplicate && n > 1 {
			return fmt.Errorf("train %s: --zero1 divides the optimizer state of replicas of the whole model, and --%s is %d: leave one of them out; --fsdp divides the state too",
				task, name, n)
		}
	}
	return nil
}

// meshShape is how the ranks of a run are arranged: the product of the sizes, which are in
// the order of axisNames, is the number of ranks. A number of 0 was left out.
type meshShape struct {
	sizes [len(axisNames)]int
	ranks int
}

// product multiplies the sizes that are known. It is larger than any number of ranks where
// it does not fit.
func (m meshShape) product() int {
	p := 1
	for _, n := range m.sizes {
		if p *= max(n, 1); p > mostRanks*mostRanks {
			break
		}
	}
	return p
}

// free returns the axis that takes what the others leave of the ranks, -1 for none: it is
// replicate or else fsdp, if it was left out, or the only one that was left out.
func (m meshShape) free() int {
	out := slices.Collect(func(yield func(int) bool) {
		for i, n := range m.sizes {
			if n == 0 && !yield(i) {
				return
			}
		}
	})
	for _, i := range out {
		if name := axisNames[i]; name == axisReplicate || name == axisFSDP || len(out) == 1 {
			return i
		}
	}
	return -1
}

// solve fills in what was left out. The axes that are left out become 1, unless the
// number of ranks says more: then a free one takes what the others leave.
func (m meshShape) solve() (meshShape, error) {
	fail := func(why string) (meshShape, error) {
		return m, fmt.Errorf("%v: %s; leave one of them out and it follows", m, why)
	}
	solved, known, free := m, m.product(), m.free()
	switch {
	case m.ranks == 0:
		solved.ranks = known
	case free < 0 && known != m.ranks:
		return fail(fmt.Sprintf("the product is %d", known))
	case m.ranks%known != 0:
		return fail(fmt.Sprintf("%d is no multiple of %d", m.ranks, known))
	case free >= 0:
		solved.sizes[free] = m.ranks / known
	}
	for i := range solved.sizes {
		solved.sizes[i] = max(solved.sizes[i], 1)
	}
	return solved, nil
}

// String is the equation: "--replicate 2 × --fsdp ? = --ranks 8".
func (m meshShape) String() string {
	text := func(name string, n int) string {
		if n == 0 {
			return "--" + name + " ?"
		}
		return fmt.Sprintf("--%s %d", name, n)
	}
	var factors []string
	free := m.free()
	for i, n := range m.sizes {
		if n > 0 || i == free {
			factors = append(factors, text(axisNames[i], n))
		}
	}
	return strings.Join(factors, " × ") + " = " + text("ranks", m.ranks)
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
	c.take(m)
	return nil
}

// take makes the settings those of an arrangement.
func (c *SharedConfig) take(m meshShape) {
	for i, name := range axisNames {
		*c.MeshConfig.size(name) = m.sizes[i]
	}
	c.Ranks = m.ranks
}

// shape returns how the ranks are arranged.
func (c SharedConfig) shape(given map[string]string) (meshShape, error) {
	asked := meshShape{c.sizes(), c.Ranks}
	outside := func(n int) bool { return n < 0 || n > mostRanks }
	if slices.ContainsFunc(asked.sizes[:], outside) || given["ranks"] != "" && (c.Ranks < 1 || outside(c.Ranks)) {
		return asked, nil // what checks the settings says what they may be
	}
	if given["ranks"] == "" && slices.Max(asked.sizes[:]) > 0 {
		asked.ranks = 0
	}
	m, err := asked.solve()
	flags := given["ranks"] == config.Flag || slices.ContainsFunc(axisNames[:], func(name string) bool { return given[name] == config.Flag })
	if err == nil || !flags {
		return m, err // a file that does not agree with itself is wrong
	}
	for _, f := range []struct {
		name  string
		value *int
	}{{axisReplicate, &asked.sizes[slices.Index(axisNames[:], axisReplicate)]}, {"ranks", &asked.ranks}} {
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
	for _, name := range axisNames {
		inJob[name] = given[name]
	}
	c.Ranks = numRanks
	m, err := c.shape(inJob)
	if err != nil {
		return settled(fmt.Errorf("train %s: this job was started with %d %s, and %s", task, numRanks, plural(numRanks, "rank"),
			strings.ReplaceAll(err.Error(), "--ranks", "ranks")))
	}
	c.take(m)
	return nil
}
