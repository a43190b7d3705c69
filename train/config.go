// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"strings"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// LMConfig is everything that decides a run of [LM], besides the text itself.
// It is saved with every checkpoint.
type LMConfig struct {
	Data string `json:"data"` // file or directory; "" is the Go standard library's source
	Out  string `json:"-"`    // the run's directory

	Ranks      int    `json:"ranks"`
	Batch      int    `json:"batch"`      // sequences a rank and pass
	Accumulate int    `json:"accumulate"` // passes a step, whose gradients add up
	Steps      int    `json:"steps"`
	Seed       int64  `json:"seed"`      // of the first weights and the order of the data
	DType      string `json:"dtype"`     // float32, or bfloat16: autocast with float32 weights
	Recompute  bool   `json:"recompute"` // keep only what goes in and out of a layer, and compute the rest twice
	NaN        string `json:"nan"`       // what becomes of a step that is not finite: "stop" or "skip"

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
	Prompt       string `json:"prompt"`        // that the text goes on from; "" for one that suits the data
}

// DefaultLM is the recipe for about three minutes on two cores.
func DefaultLM() LMConfig {
	return LMConfig{
		Out: "out/lm", Ranks: 2, Batch: 4, Accumulate: 1, Steps: 8000, Seed: 1, DType: "float32", NaN: nanStop,
		Vocab: 1024, Context: 128, Width: 96, Heads: 3, Layers: 3,
		LR: 7e-3, WeightDecay: 0.1, Beta2: 0.95, Clip: 1, Warmup: 0.05, LRFloor: 0.02,
		EvalEvery: 1000, EvalTokens: 1 << 16, SaveEvery: 1000, Keep: 2,
		SampleTokens: 200,
	}
}

// Validate reports the first setting that makes no sense, and what would.
func (c LMConfig) Validate() error {
	for _, f := range []struct {
		name   string
		value  int
		lo, hi int
	}{
		{"ranks", c.Ranks, 1, 1 << 16}, {"batch", c.Batch, 1, 1 << 20}, {"accumulate", c.Accumulate, 1, 1 << 20}, {"steps", c.Steps, 1, 1 << 40},
		{"vocab", c.Vocab, 257, 1 << 16}, {"context", c.Context, 8, 1 << 16},
		{"eval-every", c.EvalEvery, 1, 1 << 40}, {"eval-tokens", c.EvalTokens, c.Context, 1 << 40},
		{"save-every", c.SaveEvery, 1, 1 << 40}, {"keep", c.Keep, 1, 1 << 20}, {"sample-tokens", c.SampleTokens, 0, 1 << 20},
	} {
		if f.value < f.lo || f.value > f.hi {
			return fmt.Errorf("train lm: --%s is %d, want %d to %d", f.name, f.value, f.lo, f.hi)
		}
	}
	if _, ok := autocasts[c.DType]; !ok {
		return fmt.Errorf("train lm: --dtype is %q, want float32 or bfloat16", c.DType)
	}
	if !isNaNPolicy(c.NaN) {
		return fmt.Errorf("train lm: --nan is %q, want %s", c.NaN, strings.Join(nanPolicies, " or "))
	}
	// Written so that NaN, which compares with nothing, is refused too.
	for _, f := range []struct {
		name  string
		value float64
		ok    bool
		want  string
	}{
		{"lr", c.LR, c.LR > 0 && c.LR <= math.MaxFloat32, "a finite number above 0"},
		{"clip", c.Clip, c.Clip > 0, "a number above 0 (inf clips nothing)"},
		{"weight-decay", c.WeightDecay, c.WeightDecay >= 0 && c.WeightDecay <= math.MaxFloat32, "a finite number from 0 on"},
		{"beta2", c.Beta2, c.Beta2 > 0 && c.Beta2 < 1, "a number between 0 and 1"},
		{"warmup", c.Warmup, c.Warmup >= 0 && c.Warmup <= 1, "a share of the steps, 0 to 1"},
		{"lr-floor", c.LRFloor, c.LRFloor >= 0 && c.LRFloor <= 1, "a share of the learning rate, 0 to 1"},
	} {
		if !f.ok {
			return fmt.Errorf("train lm: --%s is %v, want %s", f.name, f.value, f.want)
		}
	}
	if strings.TrimSpace(c.Out) == "" {
		return fmt.Errorf("train lm: --out must name the run's directory")
	}
	return c.model().Validate()
}

func (c LMConfig) model() models.GPTConfig {
	return models.GPTConfig{Vocab: c.Vocab, Context: c.Context, Width: c.Width, Heads: c.Heads, Layers: c.Layers, Tanh: true}
}

func (c LMConfig) autocast() nn.CtxOption { return nn.WithAutocast(autocasts[c.DType]) }

// numSequences returns how many sequences all ranks take in a step.
func (c LMConfig) numSequences() int { return c.Ranks * c.Batch * c.Accumulate }

func (c LMConfig) numWarmup() int { return int(c.Warmup * float64(c.Steps)) }

// adopt takes over what a checkpoint's run was made with. What the user gave
// in explicit (by flag name) stays, but must agree where it makes the run what
// it is: model, seed, data, and the sequences of a step.
func (c *LMConfig) adopt(saved LMConfig, explicit map[string]bool) error {
	var conflicts []string
	fixed := func(flag string, given, was any) {
		if explicit[flag] && given != was {
			conflicts = append(conflicts, fmt.Sprintf("--%s is %v, the checkpoint's %v", flag, given, was))
		}
	}
	fixed("vocab", c.Vocab, saved.Vocab)
	fixed("context", c.Context, saved.Context)
	fixed("width", c.Width, saved.Width)
	fixed("heads", c.Heads, saved.Heads)
	fixed("layers", c.Layers, saved.Layers)
	fixed("seed", c.Seed, saved.Seed)
	fixed("data", c.Data, saved.Data)

	given := *c
	*c = saved
	c.Out, c.Ranks = given.Out, given.Ranks
	for flag, take := range map[string]func(){
		"steps":         func() { c.Steps = given.Steps },
		"batch":         func() { c.Batch = given.Batch },
		"dtype":         func() { c.DType = given.DType },
		"accumulate":    func() { c.Accumulate = given.Accumulate },
		"recompute":     func() { c.Recompute = given.Recompute },
		"nan":           func() { c.NaN = given.NaN },
		"lr":            func() { c.LR = given.LR },
		"weight-decay":  func() { c.WeightDecay = given.WeightDecay },
		"beta2":         func() { c.Beta2 = given.Beta2 },
		"clip":          func() { c.Clip = given.Clip },
		"warmup":        func() { c.Warmup = given.Warmup },
		"lr-floor":      func() { c.LRFloor = given.LRFloor },
		"eval-every":    func() { c.EvalEvery = given.EvalEvery },
		"eval-tokens":   func() { c.EvalTokens = given.EvalTokens },
		"save-every":    func() { c.SaveEvery = given.SaveEvery },
		"keep":          func() { c.Keep = given.Keep },
		"sample-tokens": func() { c.SampleTokens = given.SampleTokens },
		"prompt":        func() { c.Prompt = given.Prompt },
	} {
		if explicit[flag] {
			take()
		}
	}
	// The sequences of a step stay as many on another number of ranks.
	total := saved.numSequences()
	if each := c.Ranks * c.Accumulate; !explicit["batch"] && each > 0 && total%each == 0 {
		c.Batch = total / each
	} else if each := c.Ranks * c.Batch; !explicit["accumulate"] && each > 0 && total%each == 0 {
		c.Accumulate = total / each
	}
	if c.numSequences() != total {
		passes := func(c LMConfig) string {
			if c.Accumulate == 1 {
				return ""
			}
			return fmt.Sprintf(" × %d passes", c.Accumulate)
		}
		conflicts = append(conflicts, fmt.Sprintf("%d ranks × %d sequences%s = %d a step, the checkpoint's run has %d × %d%s = %d (set --batch)",
			c.Ranks, c.Batch, passes(*c), c.numSequences(), saved.Ranks, saved.Batch, passes(saved), total))
	}
	if len(conflicts) > 0 {
		return fmt.Errorf("train lm: the checkpoint in %s is of another run: %s; drop these flags, or give another --out to start afresh",
			c.Out, strings.Join(conflicts, "; "))
	}
	return nil
}
