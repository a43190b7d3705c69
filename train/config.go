// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/models"
)

// LMConfig is everything that decides a run of [LM], besides the text itself.
// It is saved with every checkpoint.
type LMConfig struct {
	Data string `json:"data"` // file or directory; "" is the Go standard library's source
	Out  string `json:"-"`    // the run's directory

	Ranks int    `json:"ranks"`
	Batch int    `json:"batch"` // sequences a rank and step
	Steps int    `json:"steps"`
	Seed  int64  `json:"seed"` // of the first weights and the order of the data
	DType string `json:"dtype"`

	Vocab   int `json:"vocab"`
	Context int `json:"context"` // tokens in a sequence
	Width   int `json:"width"`
	Heads   int `json:"heads"`
	Layers  int `json:"layers"`

	LR          float64 `json:"lr"`
	WeightDecay float64 `json:"weight_decay"`
	Beta2       float64 `json:"beta2"`
	Clip        float64 `json:"clip"`     // largest norm of all gradients together
	Warmup      float64 `json:"warmup"`   // share of the steps
	LRFloor     float64 `json:"lr_floor"` // share of LR at the end

	EvalEvery  int `json:"eval_every"`
	EvalTokens int `json:"eval_tokens"`
	SaveEvery  int `json:"save_every"`
	Keep       int `json:"keep"` // checkpoints that stay

	SampleTokens int    `json:"sample_tokens"` // of text printed at the end
	Prompt       string `json:"prompt"`        // that the text goes on from
}

// DefaultLM is the recipe for about three minutes on two cores.
func DefaultLM() LMConfig {
	return LMConfig{
		Out: "out/lm", Ranks: 2, Batch: 8, Steps: 2000, Seed: 1, DType: "float32",
		Vocab: 1024, Context: 256, Width: 192, Heads: 6, Layers: 4,
		LR: 4e-3, WeightDecay: 0.1, Beta2: 0.95, Clip: 1, Warmup: 0.05, LRFloor: 0.02,
		EvalEvery: 250, EvalTokens: 1 << 16, SaveEvery: 500, Keep: 2,
		SampleTokens: 200, Prompt: "// Package",
	}
}

// Validate reports the first setting that makes no sense, and what would.
func (c LMConfig) Validate() error {
	for _, f := range []struct {
		name   string
		value  int
		lo, hi int
	}{
		{"ranks", c.Ranks, 1, 1 << 16}, {"batch", c.Batch, 1, 1 << 20}, {"steps", c.Steps, 1, 1 << 40},
		{"vocab", c.Vocab, 257, 1 << 16}, {"context", c.Context, 8, 1 << 16},
		{"eval-every", c.EvalEvery, 1, 1 << 40}, {"eval-tokens", c.EvalTokens, c.Context, 1 << 40},
		{"save-every", c.SaveEvery, 1, 1 << 40}, {"keep", c.Keep, 1, 1 << 20}, {"sample-tokens", c.SampleTokens, 0, 1 << 20},
	} {
		if f.value < f.lo || f.value > f.hi {
			return fmt.Errorf("train lm: --%s is %d, want %d to %d", f.name, f.value, f.lo, f.hi)
		}
	}
	if c.DType != "float32" {
		return fmt.Errorf("train lm: --dtype is %q; training is in float32 today (bfloat16 is planned)", c.DType)
	}
	if !(c.LR > 0) || !(c.Clip > 0) {
		return fmt.Errorf("train lm: --lr is %v and --clip %v, both must be above zero", c.LR, c.Clip)
	}
	if strings.TrimSpace(c.Out) == "" {
		return fmt.Errorf("train lm: --out must name the run's directory")
	}
	return c.model().Validate()
}

func (c LMConfig) model() models.GPTConfig {
	return models.GPTConfig{Vocab: c.Vocab, Context: c.Context, Width: c.Width, Heads: c.Heads, Layers: c.Layers, Tanh: true}
}

func (c LMConfig) numWarmup() int { return int(c.Warmup * float64(c.Steps)) }

// adopt takes over what a checkpoint's run was made with. Settings that the
// user gave in explicit (by flag name) must agree with it.
func (c *LMConfig) adopt(saved LMConfig, explicit map[string]bool) error {
	var conflicts []string
	keep := func(flag string, mine, theirs any) bool {
		if explicit[flag] && mine != theirs {
			conflicts = append(conflicts, fmt.Sprintf("--%s is %v, the checkpoint's %v", flag, mine, theirs))
		}
		return false
	}
	for _, f := range []struct {
		flag         string
		mine, theirs *int
	}{
		{"vocab", &c.Vocab, &saved.Vocab}, {"context", &c.Context, &saved.Context}, {"width", &c.Width, &saved.Width},
		{"heads", &c.Heads, &saved.Heads}, {"layers", &c.Layers, &saved.Layers},
	} {
		keep(f.flag, *f.mine, *f.theirs)
		*f.mine = *f.theirs
	}
	keep("seed", c.Seed, saved.Seed)
	c.Seed = saved.Seed
	keep("data", c.Data, saved.Data)
	c.Data = saved.Data
	if !explicit["steps"] {
		c.Steps = saved.Steps
	}
	for _, f := range []struct {
		flag         string
		mine, theirs *float64
	}{
		{"lr", &c.LR, &saved.LR}, {"weight-decay", &c.WeightDecay, &saved.WeightDecay}, {"clip", &c.Clip, &saved.Clip},
		{"beta2", &c.Beta2, &saved.Beta2}, {"warmup", &c.Warmup, &saved.Warmup}, {"lr-floor", &c.LRFloor, &saved.LRFloor},
	} {
		if !explicit[f.flag] {
			*f.mine = *f.theirs
		}
	}
	// The batch of all ranks together stays what it was.
	total := saved.Ranks * saved.Batch
	if !explicit["batch"] && total%c.Ranks == 0 {
		c.Batch = total / c.Ranks
	}
	if c.Ranks*c.Batch != total {
		conflicts = append(conflicts, fmt.Sprintf("%d ranks × %d sequences = %d a step, the checkpoint's run has %d × %d = %d (set --batch)",
			c.Ranks, c.Batch, c.Ranks*c.Batch, saved.Ranks, saved.Batch, total))
	}
	if len(conflicts) > 0 {
		return fmt.Errorf("train lm: the checkpoint in %s is of another run: %s; drop these flags, or give another --out to start afresh",
			c.Out, strings.Join(conflicts, "; "))
	}
	return nil
}
