// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// SplitConfig has the settings of [LMConfig] for how a model is split over the axes of the
// mesh.
type SplitConfig struct {
	Schedule string `json:"schedule,omitempty" run:"here" group:"Mesh" values:"gpipe|1f1b|interleaved|interleaved-zb|zbv|dualpipev" usage:"for --pp: the order in which stages compute the passes of a step; default: 1f1b"`
	Stages   int    `json:"stages,omitempty" run:"here" usage:"for --pp: number of stages, of which a rank has one or several; 0: what suits the schedule"`
	CPMethod string `json:"cp_method,omitempty" run:"here" values:"ring|heads" usage:"for --cp: ranks pass keys and values around (ring), or exchange heads for time (heads); default: ring"`
}

// The ways to compute attention over a sequence that is split.
const (
	cpRing  = "ring"
	cpHeads = "heads"
)

func (c SplitConfig) schedule() string { return cmp.Or(c.Schedule, "1f1b") }

// validateSplit reports names that there are not, and axes that a model without experts or an
// adapter cannot have.
func (c LMConfig) validateSplit() error {
	fail := func(format string, args ...any) error { return fmt.Errorf("train lm: "+format, args...) }
	if err := checkWholes("lm", []whole{{"stages", c.Stages, 0, mostRanks}}); err != nil {
		return err
	}
	_, err := schedule.New(c.schedule(), 1, 0, 1)
	switch unknown := (*schedule.NameError)(nil); {
	case errors.As(err, &unknown):
		hint := ""
		if unknown.Nearest != "" {
			hint = fmt.Sprintf("; did you mean %s?", unknown.Nearest)
		}
		return fail("--schedule is %q, want %s%s", c.Schedule, strings.Join(unknown.Known, ", "), hint)
	case c.CPMethod != "" && c.CPMethod != cpRing && c.CPMethod != cpHeads:
		return fail("--cp-method is %q, want ring or heads", c.CPMethod)
	case c.EP > 1 && c.Experts == 0 && c.InitFrom == "":
		return fail("--ep is %d, and the model has no experts to split: give --experts, or leave --ep out", c.EP)
	case c.CP > 1 && c.Capacity != 0:
		return fail("--capacity counts the tokens of whole sequences, and --cp %d gives a rank a part of each: leave --capacity or --cp out", c.CP)
	}
	if c.LoRA > 0 && c.EP > 1 {
		return fail("--lora trains matrices beside the weights, which the axis ep does not split: leave --ep out, and use other axes")
	}
	return nil
}

// checkUsed reports settings of axes that the run does not have.
func (c LMConfig) checkUsed() error {
	for _, s := range []struct {
		name, value, axis string
		unused            bool
	}{
		{"schedule", c.Schedule, axisPP, c.PP <= 1 && c.Schedule != ""},
		{"stages", strconv.Itoa(c.Stages), axisPP, c.PP <= 1 && c.Stages != 0},
		{"cp-method", c.CPMethod, axisCP, c.CP <= 1 && c.CPMethod != ""},
	} {
		if s.unused {
			return fmt.Errorf("train lm: --%s is %s, and the run has no axis %s: give --%s, or leave --%s out", s.name, s.value, s.axis, s.axis, s.name)
		}
	}
	return nil
}

// otherTP says what to do if --tp does not divide the heads of the model.
func (c LMConfig) otherTP(heads, keyHeads int) string {
	var sizes []string
	for n := 2; n <= keyHeads; n++ {
		if heads%n == 0 && keyHeads%n == 0 {
			sizes = append(sizes, strconv.Itoa(n))
		}
	}
	switch {
	case c.InitFrom == "" && c.Width%c.TP == 0:
		return fmt.Sprintf("give --heads %d, or another multiple of %d that divides the width %d", c.TP, c.TP, c.Width)
	case len(sizes) == 0:
		return "leave --tp out, and use other axes"
	}
	return "give --tp " + strings.Join(sizes, " or ")
}

// checkSplit reports a model that the axes of the mesh cannot split: before anything is
// trained, and before ranks are started.
func (c LMConfig) checkSplit(m models.CausalLM) error {
	fail := func(format string, args ...any) error { return fmt.Errorf("train lm: "+format, args...) }
	s := m.Shape()
	for _, of := range []struct {
		name string
		n    int
	}{{"attention heads", s.Heads}, {"heads of keys and values", s.KeyHeads}} {
		if c.TP > 1 && of.n%c.TP != 0 {
			return fail("--tp is %d, and the model has %d %s, of which each rank takes as many: %d %% %d = %d; %s", c.TP, of.n, of.name, of.n, c.TP, of.n%c.TP, c.otherTP(s.Heads, s.KeyHeads))
		}
		if all := max(c.TP, 1) * c.CP; c.CP > 1 && c.CPMethod == cpHeads && of.n%all != 0 {
			return fail("--cp-method heads divides the %d %s among --tp × --cp = %d ranks: %d %% %d = %d; use --cp-method ring", of.n, of.name, all, of.n, all, of.n%all)
		}
	}
	if c.PP > 1 {
		stages := c.Stages
		if sched, err := schedule.New(c.schedule(), c.PP, c.Stages, 4*c.PP); err == nil {
			stages = sched.NumStages
		}
		if stages > s.Layers {
			return fail("--pp %d with the schedule %s has %d stages, and the model %d %s: a stage has one at least", c.PP, c.schedule(), stages, s.Layers, plural(s.Layers, "layer"))
		}
	}
	if chunks := 2 * c.CP; c.CP > 1 && c.Context > 0 && c.Context < chunks {
		return fail("--cp %d cuts a sequence into 2 × %d = %d chunks, and --context is %d: a chunk has one token at least", c.CP, c.CP, chunks, c.Context)
	}
	switch {
	case c.EP <= 1:
	case s.Experts == 0:
		return fail("--ep is %d, and the model has no experts to split: leave --ep out", c.EP)
	case s.Experts < c.EP:
		return fail("--ep is %d, and the model has %d experts: a rank has one at least", c.EP, s.Experts)
	default:
		if each := (s.Experts + c.EP - 1) / c.EP; each*(c.EP-1) >= s.Experts {
			return fail("--ep is %d, and the model has %d experts: ⌈%d/%d⌉ = %d a rank leave the last rank none", c.EP, s.Experts, s.Experts, c.EP, each)
		}
	}
	return nil
}

// splitConfig says how the model is split over the axes of the mesh. It has plans of its own for
// tensor parallelism.
func (r *lmRun) splitConfig() parallel.Config {
	c := r.cfg
	return parallel.Config{
		DDP:     []parallel.DDPOption{parallel.WithOnStraggler(nil)},
		Context: parallel.ContextConfig{Attention: c.CPMethod},
		Pipeline: parallel.PipelineConfig{
			Schedule: c.schedule(), NumStages: c.Stages, Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, c.Batch, c.Context)},
		},
	}
}

// dividePasses divides the samples of a step into the passes that the schedule of a pipeline
// wants, up to four for each of its ranks, unless the user said how many there are.
func (r *lmRun) dividePasses() error {
	c := &r.cfg
	r.given = r.settings.Given()
	if err := c.checkUsed(); err != nil || c.PP <= 1 {
		return err
	}
	fits := func(passes int) error {
		_, err := schedule.New(c.schedule(), c.PP, c.Stages, passes)
		return err
	}
	if size := c.size(); r.given["accumulate"] == "" {
		c.begin(size)
		if size.divide(4*c.PP, func(passes int) bool { return fits(passes) == nil }) {
			from := fmt.Sprintf("for --pp %d", c.PP)
			r.settings.Field("batch").SetInt(size.batch, from)
			r.settings.Field("accumulate").SetInt(size.accumulate, from)
			c.Uneven = size.uneven
		}
	}
	if err := fits(c.Accumulate); err != nil {
		return fmt.Errorf("train lm: --pp %d with --accumulate %d and --batch %d: %w", c.PP, c.Accumulate, c.Batch, err)
	}
	return nil
}
