// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
)

// LMConfig has the settings of a run of [LM]: all that decides the run besides
// the text. They are saved with every checkpoint. Each field with a usage is a
// flag of `cohort train lm` and a key of its configuration file; package
// internal/config explains the tags.
type LMConfig struct {
	Data  string `json:"data" group:"Run" usage:"{PATH} of UTF-8 text, a file or a directory; of records, such as chats (.jsonl, .json), a file, a directory or a glob; or of tokens, a directory from cohort tokenize encode; default: the Go standard library's source"`
	Steps int    `json:"steps" usage:"number of training steps"`

	Vocab   int `json:"vocab" run:"fixed" group:"Model" usage:"entries of the tokenizer's vocabulary"`
	Context int `json:"context" run:"fixed" usage:"tokens in a sequence"`
	Width   int `json:"width" run:"fixed" usage:"width of the model"`
	Heads   int `json:"heads" run:"fixed" usage:"attention heads; the width is a multiple of them"`
	Layers  int `json:"layers" run:"fixed" usage:"layers of the model"`

	LR          float64 `json:"lr" group:"Optimizer" usage:"highest learning rate"`
	WeightDecay float64 `json:"weight_decay" usage:"weight decay of the matrices"`
	Beta2       float64 `json:"beta2" usage:"AdamW's second decay rate"`
	Warmup      float64 `json:"warmup" usage:"share of the steps, 0 to 1, in which the learning rate rises"`
	LRFloor     float64 `json:"lr_floor" usage:"share of the learning rate, 0 to 1, that is left at the end"`

	RecordConfig

	ExpertConfig

	SharedConfig
	SplitConfig

	Recompute    bool   `json:"recompute" group:"Step" usage:"keep only the inputs of each layer for the backward pass and compute the rest again: less memory, more time"`
	EvalTokens   int    `json:"eval_tokens" group:"Evaluation" usage:"tokens of validation text in an evaluation"`
	SampleTokens int    `json:"sample_tokens" group:"Sample" usage:"tokens of text that the model writes at the end"`
	Prompt       string `json:"prompt" usage:"text that the sample begins with"`

	TuneConfig
}

// DefaultLM returns settings that train for about three minutes on two cores.
func DefaultLM() LMConfig {
	c := LMConfig{
		SharedConfig: sharedDefaults("out/lm"), Steps: 8000,
		Vocab: 1024, Context: 128, Width: 96, Heads: 3, Layers: 3,
		LR: 7e-3, WeightDecay: 0.1, Beta2: 0.95, Warmup: 0.05, LRFloor: 0.02,
		EvalTokens: 1 << 16, SampleTokens: 200,
	}
	c.OnError = data.Fail.String()
	c.Batch, c.Clip, c.EvalEvery, c.SaveEvery, c.Balance = 4, 1, 1000, 1000, 0.01
	return c
}

// Validate reports the first setting that makes no sense, and what would.
func (c LMConfig) Validate() error {
	if err := c.validate("lm"); err != nil {
		return err
	}
	if err := c.checkIslandSteps("lm", c.Steps); err != nil {
		return err
	}
	if err := c.validateExperts(); err != nil {
		return err
	}
	if err := c.validateRecords(); err != nil {
		return err
	}
	if err := c.validateSplit(); err != nil {
		return err
	}
	vocab, context := whole{"vocab", c.Vocab, 257, tokenizer.MaxVocab}, whole{"context", c.Context, 8, 1 << 20}
	for _, f := range []*whole{&vocab, &context} {
		if c.InitFrom != "" && f.value == 0 { // the model's own
			f.lo = 0
		}
	}
	if err := checkWholes("lm", []whole{
		{"steps", c.Steps, 1, 1 << 40}, vocab, context,
		{"eval-tokens", c.EvalTokens, c.Context, 1 << 40}, {"sample-tokens", c.SampleTokens, 0, 1 << 20},
	}); err != nil {
		return err
	}
	if err := checkNumbers("lm", []number{
		{"lr", c.LR, c.LR > 0 && c.LR <= math.MaxFloat32, "a finite number above 0"},
		{"weight-decay", c.WeightDecay, c.WeightDecay >= 0 && c.WeightDecay <= math.MaxFloat32, "a finite number from 0 on"},
		{"beta2", c.Beta2, c.Beta2 > 0 && c.Beta2 < 1, "a number between 0 and 1"},
		{"warmup", c.Warmup, c.Warmup >= 0 && c.Warmup <= 1, "a share of the steps, 0 to 1"},
		{"lr-floor", c.LRFloor, c.LRFloor >= 0 && c.LRFloor <= 1, "a share of the learning rate, 0 to 1"},
	}); err != nil {
		return err
	}
	if err := checkDecay("lm", c.LR, c.WeightDecay); err != nil {
		return err
	}
	if err := c.validateTune(); err != nil || c.InitFrom != "" {
		return err
	}
	if c.Width > 0 && c.Heads > 0 && c.Width%c.Heads != 0 {
		return fmt.Errorf("train lm: --width is %d and --heads %d: the width must be a multiple of its heads, and %d %% %d = %d", c.Width, c.Heads, c.Width, c.Heads, c.Width%c.Heads)
	}
	switch {
	case c.Experts > 0:
		return c.mixture(c.Vocab).Validate()
	case c.Model == "llama":
		return c.llama(c.Vocab).Validate()
	}
	return c.model().Validate()
}

func (c LMConfig) model() models.GPTConfig {
	return models.GPTConfig{Vocab: c.Vocab, Context: c.Context, Width: c.Width, Heads: c.Heads, Layers: c.Layers, Tanh: true}
}

func (c LMConfig) numWarmup() int { return int(c.Warmup * float64(c.Steps)) }

// adopt takes the settings of a checkpoint's run; see [SharedConfig].
func (c *LMConfig) adopt(saved LMConfig, s *config.Settings, path string) error {
	conflicts := c.SharedConfig.adopt(s, &saved, saved.SharedConfig, path, "sequences")
	c.Base = saved.Base // which is no setting
	if c.InitFrom != saved.InitFrom && (saved.InitFrom == "" || saved.Base == "") {
		conflicts = append(conflicts, fmt.Sprintf("--init-from is %s, the checkpoint's run %s", c.InitFrom, cmp.Or(saved.InitFrom, "began with a new model")))
	}
	return conflicting("lm", c.Out, conflicts)
}
