// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"

	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// LMConfig is everything that decides a run of [LM], besides the text itself.
// It is saved with every checkpoint. Its fields are the flags of `cohort train
// lm` and the keys of its configuration file; package internal/config says what
// the tags mean.
type LMConfig struct {
	Ranks      int    `json:"ranks" run:"here" usage:"{number} of ranks, a process each"`
	Data       string `json:"data" usage:"{file} or directory of UTF-8 text, or directory of tokens from cohort tokenize; default is the Go standard library's source"`
	Out        string `json:"-" flag:"out" run:"here" usage:"{directory} of the run; with --init-from out/tuned, with --lora out/lora"`
	Steps      int    `json:"steps" usage:"training steps; with --init-from 200"`
	Batch      int    `json:"batch" usage:"sequences a rank and pass"`
	Accumulate int    `json:"accumulate" usage:"{passes} of a step, whose gradients add up: the sequences of a step are ranks × batch × accumulate"`
	Workers    int    `json:"workers" run:"here" usage:"{goroutines} of a rank that make batches ahead of the step; 0 makes them in it"`
	Seed       int64  `json:"seed" run:"fixed" usage:"decides the first weights and the order of the data"`
	DType      string `json:"dtype" usage:"{type} that is computed in: float32 or bfloat16 (weights and checkpoints are float32 always)"`
	Recompute  bool   `json:"recompute" usage:"keep only what goes in and out of each layer for the backward pass, and compute the rest again: less memory, more time"`
	NaN        string `json:"nan" usage:"what to do about a step whose loss or gradients are not finite: {stop}, or skip its update (at most 10 in a row)"`

	Vocab   int `json:"vocab" run:"fixed" usage:"entries of the tokenizer's vocabulary; this and the sizes below are the model's own with --init-from"`
	Context int `json:"context" run:"fixed" usage:"tokens in a sequence; with --init-from at most as many as the model takes"`
	Width   int `json:"width" run:"fixed" usage:"width of the model"`
	Heads   int `json:"heads" run:"fixed" usage:"attention heads; they divide the width"`
	Layers  int `json:"layers" run:"fixed" usage:"layers of the model"`

	LR          float64 `json:"lr" usage:"highest learning {rate}; with --init-from 0.0001, with --lora 0.001"`
	WeightDecay float64 `json:"weight_decay" usage:"weight decay of the matrices; with --init-from 0.01"`
	Beta2       float64 `json:"beta2" usage:"AdamW's second decay {rate}; with --init-from 0.999"`
	Clip        float64 `json:"clip" usage:"largest {norm} of all gradients together; 0 clips nothing"`
	Warmup      float64 `json:"warmup" usage:"{share} of the steps in which the learning rate rises"`
	LRFloor     float64 `json:"lr_floor" usage:"{share} of the learning rate that is left at the end"`

	EvalEvery  int     `json:"eval_every" usage:"{steps} between evaluations; with --init-from 50"`
	EvalTokens int     `json:"eval_tokens" usage:"validation {tokens} of an evaluation"`
	Patience   int     `json:"patience" usage:"{evaluations} without a better one after which the run ends early; 0 is never"`
	MinDelta   float64 `json:"min_delta" usage:"by how much an evaluation must be better to count for --patience"`
	SaveEvery  int     `json:"save_every" usage:"{steps} between checkpoints; with --init-from 100"`
	Keep       int     `json:"keep" usage:"{number} of checkpoints that stay, besides the best"`

	SampleTokens int    `json:"sample_tokens" usage:"{tokens} of text to print at the end"`
	Prompt       string `json:"prompt" usage:"{text} that the sample goes on from"`

	StepShare
	TuneConfig
}

// DefaultLM is the recipe for about three minutes on two cores.
func DefaultLM() LMConfig {
	return LMConfig{
		Out: "out/lm", Ranks: 2, Batch: 4, Accumulate: 1, Workers: 1, Steps: 8000, Seed: 1, DType: "float32", NaN: nanStop,
		Vocab: 1024, Context: 128, Width: 96, Heads: 3, Layers: 3,
		LR: 7e-3, WeightDecay: 0.1, Beta2: 0.95, Clip: 1, Warmup: 0.05, LRFloor: 0.02,
		EvalEvery: 1000, EvalTokens: 1 << 16, SaveEvery: 1000, Keep: 2,
		SampleTokens: 200,
	}
}

// Validate reports the first setting that makes no sense, and what would.
func (c LMConfig) Validate() error {
	vocab, context := whole{"vocab", c.Vocab, 257, tokenizer.MaxVocab}, whole{"context", c.Context, 8, 1 << 20}
	for _, f := range []*whole{&vocab, &context} {
		if c.InitFrom != "" && f.value == 0 { // the model's own
			f.lo = 0
		}
	}
	if err := checkWholes("lm", []whole{
		{"ranks", c.Ranks, 1, 1 << 16}, {"batch", c.Batch, 1, 1 << 20}, {"accumulate", c.Accumulate, 1, 1 << 20}, {"steps", c.Steps, 1, 1 << 40},
		vocab, context,
		{"eval-every", c.EvalEvery, 1, 1 << 40}, {"eval-tokens", c.EvalTokens, c.Context, 1 << 40},
		{"save-every", c.SaveEvery, 1, 1 << 40}, {"keep", c.Keep, 1, 1 << 20}, {"sample-tokens", c.SampleTokens, 0, 1 << 20},
		{"workers", c.Workers, 0, 256},
		{"patience", c.Patience, 0, 1 << 40},
	}); err != nil {
		return err
	}
	if err := checkPolicies("lm", c.DType, c.NaN); err != nil {
		return err
	}
	if err := checkNumbers("lm", []number{
		{"lr", c.LR, c.LR > 0 && c.LR <= math.MaxFloat32, "a finite number above 0"},
		{"clip", c.Clip, c.Clip >= 0, "a number from 0 on"},
		{"weight-decay", c.WeightDecay, c.WeightDecay >= 0 && c.WeightDecay <= math.MaxFloat32, "a finite number from 0 on"},
		{"beta2", c.Beta2, c.Beta2 > 0 && c.Beta2 < 1, "a number between 0 and 1"},
		{"warmup", c.Warmup, c.Warmup >= 0 && c.Warmup <= 1, "a share of the steps, 0 to 1"},
		{"min-delta", c.MinDelta, c.MinDelta >= 0 && c.MinDelta <= math.MaxFloat32, "a finite number from 0 on"},
		{"lr-floor", c.LRFloor, c.LRFloor >= 0 && c.LRFloor <= 1, "a share of the learning rate, 0 to 1"},
	}); err != nil {
		return err
	}
	if err := checkDecay("lm", c.LR, c.WeightDecay); err != nil {
		return err
	}
	if err := checkNamed("lm", c.Out); err != nil {
		return err
	}
	if err := c.validateTune(); err != nil || c.InitFrom != "" {
		return err
	}
	if c.Width > 0 && c.Heads > 0 && c.Width%c.Heads != 0 {
		return fmt.Errorf("train lm: --width is %d and --heads %d: the width must be a multiple of its heads, and %d %% %d = %d", c.Width, c.Heads, c.Width, c.Heads, c.Width%c.Heads)
	}
	if c.Model == "llama" {
		return c.llama(c.Vocab).Validate()
	}
	return c.model().Validate()
}

func (c LMConfig) model() models.GPTConfig {
	return models.GPTConfig{Vocab: c.Vocab, Context: c.Context, Width: c.Width, Heads: c.Heads, Layers: c.Layers, Tanh: true}
}

func (c LMConfig) autocast() nn.CtxOption { return nn.WithAutocast(autocasts[c.DType]) }

// size is how many sequences a step takes.
func (c LMConfig) size() stepSize { return stepSize{c.Ranks, c.Batch, c.Accumulate, c.Uneven} }

func (c LMConfig) numWarmup() int { return int(c.Warmup * float64(c.Steps)) }

// adopt takes over what a checkpoint's run was made with. What the user gave
// stays, but must agree where it makes the run what it is: model, seed, data, and
// the sequences of a step.
func (c *LMConfig) adopt(saved LMConfig, s *config.Settings, path string) error {
	conflicts := s.Adopt(&saved, filepath.Base(path))
	c.Base = saved.Base // which is no setting
	if c.InitFrom != saved.InitFrom && (saved.InitFrom == "" || saved.Base == "") {
		conflicts = append(conflicts, fmt.Sprintf("--init-from is %s, the checkpoint's run %s", c.InitFrom, cmp.Or(saved.InitFrom, "began with a new model")))
	}
	size := c.size()
	if conflict := size.resume(saved.size(), saved.StepShare, &c.StepShare, s.Given(), "sequences"); conflict != "" {
		conflicts = append(conflicts, conflict)
	}
	c.Batch, c.Accumulate = size.batch, size.accumulate
	return conflicting("lm", c.Out, conflicts)
}
