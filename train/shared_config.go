// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/monitor/trace"
	"github.com/cohort-ml/cohort/nn"
)

// SharedConfig has the settings that all recipes share. A flag that every recipe
// shall have is declared here and nowhere else: as a field with the tags of
// package internal/config, a default in sharedDefaults, a check in validate, and,
// if the step loop needs the value, a line in options. Settings of how ranks share
// the work stand in MeshConfig. A sample is what the recipe trains on: a sequence of
// tokens, an image, a row.
type SharedConfig struct {
	Out   string `json:"-" flag:"out" run:"here" group:"Run" usage:"{DIR} of the run, for checkpoints, the best weights and config.toml; if it has a checkpoint, the run resumes from it"`
	Ranks int    `json:"ranks" run:"here" usage:"number of ranks, the product of the axes of the mesh; each is a process on this machine"`

	Batch      int    `json:"batch" group:"Step" usage:"samples that a rank takes in a pass"`
	Accumulate int    `json:"accumulate" usage:"passes in a step; their gradients are added, and a step takes ranks × batch × accumulate samples, where ranks that share the work on a sample (--tp, --pp, --cp) count once"`
	Workers    int    `json:"workers" run:"here" usage:"goroutines of a rank that prepare batches ahead of time; 0: each step prepares its own"`
	DType      string `json:"dtype" values:"float32|bfloat16" usage:"number type that passes compute in; weights and checkpoints are always float32"`
	NaN        string `json:"nan" values:"stop|skip" usage:"what to do in a step whose loss or gradients are not finite: stop the run, or skip the step's update (at most 10 in a row)"`
	Seed       int64  `json:"seed" run:"fixed" usage:"seed of all that is random, such as the first weights and the order of the samples"`

	Clip float64 `json:"clip" group:"Optimizer" usage:"largest norm of all gradients together; larger ones are scaled down; 0: no limit"`

	EvalEvery int     `json:"eval_every" group:"Evaluation" usage:"evaluate every {N} steps; 0: at the end only"`
	Patience  int     `json:"patience" usage:"stop early after {N} evaluations that bring nothing better; 0: never"`
	MinDelta  float64 `json:"min_delta" usage:"for --patience: an evaluation is better if it improves by more than {NUMBER}"`
	Best      bool    `json:"best" usage:"keep the weights of the best evaluation in OUT/best"`

	MeshConfig

	IslandConfig

	SaveConfig

	ProveConfig

	Profile string `json:"profile,omitempty" run:"here" group:"Run" usage:"write a trace of all ranks in the steps {FROM-TO}, such as 100-105, and a table of the operations that cost most, to OUT; it opens in ui.perfetto.dev"`

	StepShare
}

// ProveConfig has the settings of proofs that checkpoints continue the run.
type ProveConfig struct {
	Prove    bool   `json:"prove" run:"here" group:"Checkpoint" usage:"prove each checkpoint beside training: a process of low priority loads it, does the next step again and compares"`
	Unproved string `json:"unproved" values:"warn|stop" run:"here" usage:"what to do if a proof finds a difference: say so, or stop the run"`

	Prover Prover `json:"-"` // what proves; of rank 0
}

// sharedDefaults returns the defaults of the shared settings. A recipe changes
// those that suit its own data.
func sharedDefaults(out string) SharedConfig {
	return SharedConfig{
		Out: out, Ranks: 2, Accumulate: 1, Workers: 1, Seed: 1, DType: "float32", NaN: nanStop,
		Best: true, SaveConfig: SaveConfig{Keep: 2, SaveAsync: true}, ProveConfig: ProveConfig{Unproved: unprovedWarn}, IslandConfig: islandDefaults(),
	}
}

// sharedBefore returns the shared settings of a checkpoint that was saved before
// these settings existed. What the checkpoint says takes their place.
func sharedBefore() SharedConfig {
	return SharedConfig{Accumulate: 1, Workers: 1, DType: "float32", NaN: nanStop, Best: true, SaveConfig: SaveConfig{SaveAsync: true}, ProveConfig: ProveConfig{Unproved: unprovedWarn}, IslandConfig: islandDefaults()}
}

// validate reports the first shared setting that makes no sense, and what would.
func (c SharedConfig) validate(task string) error {
	if err := checkWholes(task, []whole{
		{"ranks", c.Ranks, 1, mostRanks}, {"fsdp", c.FSDP, 0, mostRanks}, {"replicate", c.Replicate, 0, mostRanks}, {"tp", c.TP, 0, mostRanks},
		{"pp", c.PP, 0, mostRanks}, {"ep", c.EP, 0, mostRanks}, {"cp", c.CP, 0, mostRanks}, {"batch", c.Batch, 1, 1 << 24}, {"accumulate", c.Accumulate, 1, 1 << 20}, {"workers", c.Workers, 0, 1 << 10},
		{"eval-every", c.EvalEvery, 0, 1 << 40}, {"patience", c.Patience, 0, 1 << 40},
	}); err != nil {
		return err
	}
	if err := c.checkZeRO1(task); err != nil {
		return err
	}
	if err := c.checkHook(task); err != nil {
		return err
	}
	if err := checkPolicies(task, c.DType, c.NaN); err != nil {
		return err
	}
	if c.Unproved != unprovedWarn && c.Unproved != unprovedStop {
		return fmt.Errorf("train %s: --unproved is %q, want %s or %s", task, c.Unproved, unprovedWarn, unprovedStop)
	}
	if err := checkNumbers(task, []number{
		{"clip", c.Clip, c.Clip >= 0, "a number from 0 on"},
		{"min-delta", c.MinDelta, c.MinDelta >= 0 && c.MinDelta <= math.MaxFloat32, "a finite number from 0 on"},
	}); err != nil {
		return err
	}
	if err := checkPatience(task, c.Patience, c.EvalEvery); err != nil {
		return err
	}
	if c.Profile != "" {
		if _, _, err := trace.ParseSteps(c.Profile); err != nil {
			return fmt.Errorf("train %s: --profile: %w", task, err)
		}
	}
	if err := c.SaveConfig.validate(task); err != nil {
		return err
	}
	if err := c.validateIslands(task); err != nil {
		return err
	}
	return checkNamed(task, c.Out)
}

// options returns what the step loop is told by the shared settings.
func (c SharedConfig) options(from *SavedRun) Options {
	o := Options{
		Out: c.Out, From: from, sought: true, Batch: c.size().total(), Accumulate: c.Accumulate,
		DType: c.DType, Clip: c.Clip, ZeRO1: c.ZeRO1, Hook: c.Hook, NaN: c.NaN, Seed: c.Seed,
		EvalEvery: c.EvalEvery, Best: c.Best, Patience: c.Patience, MinDelta: c.MinDelta, Unproved: c.Unproved, Profile: c.Profile,
	}
	if c.Prove {
		o.Prove = c.Prover
	}
	o.SaveTo = c.place()
	c.SaveConfig.fill(&o)
	return o
}

// join makes the settings those of a rank in a group. given has the settings
// that the user gave.
func (c *SharedConfig) join(task string, group *dist.Group, given map[string]string) error {
	if from := given["ranks"]; from != "" && c.Ranks != group.Size() {
		// Flags that name axes start other ranks than a file says.
		m, err := c.shape(given)
		switch {
		case from == config.Flag:
			return settled(fmt.Errorf("train %s: --ranks is %d, but this job was started with %d: leave the flag out", task, c.Ranks, group.Size()))
		case err != nil || m.ranks != group.Size():
			return settled(fmt.Errorf("train %s: ranks is %d (%s), but this job was started with %d: leave the setting out", task, c.Ranks, from, group.Size()))
		}
	}
	return c.arrange(task, group.Size(), given)
}

// size returns how many samples a step takes.
func (c SharedConfig) size() stepSize {
	return stepSize{c.Ranks / c.copies(), c.Batch, c.Accumulate, c.Uneven}
}

func (c SharedConfig) autocast() nn.CtxOption { return nn.WithAutocast(autocasts[c.DType]) }

// adopt takes the settings of a checkpoint's run for a run that resumes. s has
// all settings of the recipe, saved points to those of the checkpoint, of which
// was is the shared part. What the user gave stays, but must agree where it makes
// the run what it is, and a step takes as many samples as before. conflicts has
// what does not agree.
func (c *SharedConfig) adopt(s *config.Settings, saved any, was SharedConfig, path, unit string) (conflicts []string) {
	conflicts = s.Adopt(saved, filepath.Base(path))
	size := c.size()
	if conflict := size.resume(was.size(), was.StepShare, &c.StepShare, s.Given(), unit); conflict != "" {
		conflicts = append(conflicts, conflict)
	}
	c.Batch, c.Accumulate = size.batch, size.accumulate
	return conflicts
}
