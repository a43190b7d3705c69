// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// TuneConfig has the settings of [LMConfig] for the kind of model and for
// fine-tuning: which model the run begins with and what of it is trained.
type TuneConfig struct {
	Model string `json:"model,omitempty" run:"fixed" group:"Model" values:"gpt2|llama" usage:"kind of model; default: gpt2, or that of --init-from"`

	InitFrom    string   `json:"init_from,omitempty" group:"Fine-tuning" usage:"{DIR} of a model to begin with, a run or a folder of Hugging Face's tools; its sizes and tokenizer replace those of --vocab to --layers, and defaults become --out out/tuned --steps 200 --lr 0.0001 --weight-decay 0.01 --beta2 0.999 --eval-every 50 --save-every 100"`
	LoRA        int      `json:"lora,omitempty" flag:"lora" run:"fixed" usage:"train low-rank matrices of rank {N} beside the model's weights and save them as PEFT does; defaults become --out out/lora --lr 0.001; 0: train the weights themselves"`
	LoRAAlpha   float64  `json:"lora_alpha,omitempty" run:"fixed" usage:"scale what the matrices add by {NUMBER} / rank; 0: twice the rank"`
	LoRADropout float64  `json:"lora_dropout,omitempty" usage:"share of the matrices' inputs, 0 to 1, that is dropped"`
	LoRATargets []string `json:"lora_targets,omitempty" run:"fixed" usage:"{NAMES} of the projections that get matrices, or all; default: PEFT's for the kind of model"`
	Merge       bool     `json:"merge,omitempty" usage:"at the end, save the model with the matrices added to its weights in OUT/merged"`

	// Base is the checksum of the model in InitFrom.
	Base string `json:"base,omitempty"`
}

// tuneDefaults replaces the defaults of a new model by those of islands, or of fine-tuning. given
// has the settings that the user gave, as for [LM]. The sizes become 0: they are
// the model's own.
func (c *LMConfig) tuneDefaults(given map[string]string) error {
	if len(c.LoRATargets) == 0 {
		c.LoRATargets = nil // an empty list in a file means the same
	}
	if len(c.Mix) == 0 {
		c.Mix = nil
	}
	if len(c.Columns) == 0 {
		c.Columns = nil
	}
	if given["eval-tokens"] == "" {
		c.EvalTokens = max(c.EvalTokens, c.Context) // of one sequence at least
	}
	if c.InitFrom == "" {
		if usual := DefaultLM().Warmup; given["warmup"] == "" && c.Warmup == usual && c.DiLoCo > 0 && c.Islands > 1 {
			c.Warmup = islandWarmup
		}
		return nil
	}
	for flag, size := range map[string]*int{"vocab": &c.Vocab, "width": &c.Width, "heads": &c.Heads, "layers": &c.Layers} {
		if given[flag] != "" && *size != 0 {
			return fmt.Errorf("train lm: --%s cannot be given with --init-from: the model in %s decides it", flag, c.InitFrom)
		}
		*size = 0
	}
	if given["balance"] != "" && c.Balance != 0 {
		return fmt.Errorf("train lm: --balance cannot be given with --init-from: a model that --experts made keeps the weight in its config.json, and a published one trains without that loss")
	}
	c.Balance = 0
	rate, out := 1e-4, filepath.Join("out", "tuned")
	if c.LoRA > 0 {
		rate, out = 1e-3, filepath.Join("out", "lora")
	}
	for flag, set := range map[string]func(){
		"out":          func() { c.Out = out },
		"context":      func() { c.Context = 0 },
		"steps":        func() { c.Steps = 200 },
		"lr":           func() { c.LR = rate },
		"weight-decay": func() { c.WeightDecay = 0.01 },
		"beta2":        func() { c.Beta2 = 0.999 },
		"eval-every":   func() { c.EvalEvery = 50 },
		"save-every":   func() { c.SaveEvery = 100 },
	} {
		if given[flag] == "" {
			set()
		}
	}
	return nil
}

// markTuned marks defaults as those of islands, of fine-tuning, or as the model's own, until
// unmark is called.
func (r *lmRun) markTuned() (unmark func()) {
	var marked []*config.Field
	if f := r.settings.Field("warmup"); r.cfg.DiLoCo > 0 && r.cfg.InitFrom == "" && f.From == config.Default {
		f.From = "default of --diloco"
		marked = append(marked, f)
	}
	for from, names := range map[string][]string{
		"default of --init-from": {"out", "steps", "lr", "weight-decay", "beta2", "eval-every", "save-every"},
		"the model's":            {"vocab", "context", "width", "heads", "layers", "balance"},
	} {
		for _, name := range names {
			if f := r.settings.Field(name); r.cfg.InitFrom != "" && f.From == config.Default {
				f.From = from
				marked = append(marked, f)
			}
		}
	}
	return func() {
		for _, f := range marked {
			f.From = config.Default
		}
	}
}

// validateTune reports the first setting of fine-tuning that makes no sense.
func (c LMConfig) validateTune() error {
	if c.InitFrom != "" && c.InitFrom == c.SaveTo {
		return fmt.Errorf("train lm: --save-to and --init-from are both %s: give another --save-to, the model stays as it is", c.SaveTo)
	}
	if c.Model != "" && c.Model != "gpt2" && c.Model != "llama" {
		return fmt.Errorf("train lm: --model is %q, want gpt2 or llama", c.Model)
	}
	if c.LoRA == 0 {
		for flag, given := range map[string]bool{
			"lora-alpha": c.LoRAAlpha != 0, "lora-dropout": c.LoRADropout != 0, "lora-targets": len(c.LoRATargets) > 0, "merge": c.Merge,
		} {
			if given {
				return fmt.Errorf("train lm: --%s needs --lora RANK", flag)
			}
		}
		return nil
	}
	if c.InitFrom == "" {
		return fmt.Errorf("train lm: --lora needs --init-from: the model beside whose weights the matrices are trained")
	}
	for _, axis := range []string{axisFSDP, axisTP, axisPP} {
		if n := *c.MeshConfig.size(axis); c.Merge && n > 1 {
			return fmt.Errorf("train lm: --merge puts the whole model on one rank, and --%s %d shards it: leave --merge out; eval and generate take the adapter as it is, and a run without --%s merges it (--init-from and --out of this one)", axis, n, axis)
		}
	}
	o := c.loraOptions(nil)
	if len(o.Targets) == 0 {
		o.Targets = []string{allTargets}
	}
	if err := o.Validate(); err != nil {
		return fmt.Errorf("train lm: --lora: %w", err)
	}
	return nil
}

// loraOptions returns the options of a LoRA for a model. m may be nil if the
// targets do not matter.
func (c LMConfig) loraOptions(m models.CausalLM) nn.LoRAOptions {
	o := nn.LoRAOptions{Rank: c.LoRA, Alpha: c.LoRAAlpha, Dropout: c.LoRADropout, Targets: c.LoRATargets}
	switch {
	case m == nil:
	case len(o.Targets) == 0:
		o.Targets = m.LoRATargets()
	case slices.Equal(o.Targets, []string{allTargets}):
		o.Targets = nil
		left := make(map[any]bool) // by PEFT too: the output layer, and what chooses experts
		for path, module := range nn.Modules(m) {
			if moe, ok := module.(*nn.MoE); ok {
				left[moe.Gate] = true
			}
			if _, ok := module.(nn.Projection); ok && path != "lm_head" && !left[module] {
				o.Targets = append(o.Targets, path)
			}
		}
	}
	return o
}
