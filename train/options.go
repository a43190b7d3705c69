// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/monitor/trace"
	"github.com/cohort-ml/cohort/tensor"
)

// Options say how long and how [Run] trains a task. Out is required, and so is
// either Steps or Epochs. The zero value of every other field is its default.
//
// Recipes make their Options of [SharedConfig] and of settings of their own.
type Options struct {
	Out  string    // directory of the run
	From *SavedRun // checkpoint to resume from; nil: Run looks for one in Out

	Steps      int
	Epochs     float64 // in place of Steps, for tasks with Samples; needs Batch
	Batch      int     // samples of all ranks in a step, as many as Feed takes; Epochs need it
	Accumulate int     // passes in a step, whose gradients are added; 0: 1
	DType      string  // number type of a pass: "float32", the default, or "bfloat16"; weights are float32
	Clip       float64 // largest norm of all gradients together; 0: no limit
	ZeRO1      bool    // replicas divide the state of the optimizer (parallel.ZeroRedundancyOptimizer)
	Hook       string  // how replicas average gradients: "bf16", "fp16", "powersgd:RANK" or "powersgd:RANK:STEP"; "" as they are
	NaN        string  // what to do in a step that is not finite: "stop", the default, or "skip"
	Seed       int64   // of all that is random in a pass

	EvalEvery int     // steps between evaluations; 0: at the end only
	Best      bool    // keep the weights of the best evaluation in Out/best
	Patience  int     // evaluations without a better one after which the run ends early; 0: never
	MinDelta  float64 // an evaluation counts as better for Patience if it improves by more than this

	SaveEvery int   // steps between checkpoints; 0: at the end, or when the run is stopped, only
	SaveSync  bool  // a step waits until its checkpoint is written, and not only until its state is copied
	SaveLimit int64 // bytes that a rank writes in a second at most; 0: no limit
	Keep      int   // number of the last checkpoints to keep; 0: 2
	KeepEvery int   // besides, keep the checkpoints of every so many steps; 0: none of them
	KeepBest  int   // besides, keep so many checkpoints with the best evaluations
	// SaveDeadline is how long ranks of a run that fails may write what they hold: the state after
	// the last whole step, each rank alone. 0 is 15 s, half the time that a launcher gives to ranks
	// that are to end. If it is negative, such a run saves nothing.
	SaveDeadline time.Duration
	// SaveTo is where checkpoints go, also from other machines; nil is the directory Out.
	SaveTo storage.Storage

	// Prove, if it is not nil, proves each checkpoint beside training once the step after it is
	// done. Rank 0 calls it in a goroutine of its own, one at a time.
	Prove Prover
	// Profile are the steps of which a trace of all ranks is written to Out, such as "100-105"; see package
	// monitor/trace. "" is what the variable COHORT_PROFILE says, or none.
	Profile string

	Unproved string // what to do when a proof finds a difference: "warn", the default, or "stop"

	Recipe json.RawMessage // settings, saved with every checkpoint; the same on all ranks
	Config []byte          // config.toml of the run's directory; nil: none

	sought bool   // a recipe has looked for a checkpoint in SaveTo
	length string // the option that makes the run longer, for people
}

// name returns how the user changes an option: by a flag of a recipe, or in the
// program. Only a recipe has a configuration.
func (o Options) name(flag string) string {
	inProgram := map[string]string{"out": "Out", "patience": "Patience", "lr": "the learning rate", "nan": `NaN: "skip"`}
	if o.Config == nil {
		return inProgram[flag]
	}
	return map[string]string{
		"out": "directory (--out)", "patience": "patience (--patience 0)", "lr": "--lr", "nan": "--nan skip",
	}[flag]
}

// autocasts has for each value of DType the number type that passes compute in; 0
// is the type of the weights.
var autocasts = map[string]tensor.DType{"float32": 0, "bfloat16": tensor.BFloat16}

// resolve fills in defaults and reports what makes no sense.
func (o Options) resolve(task string, numSamples int) (Options, error) {
	fail := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%s: options: %s", trainOf(task), fmt.Sprintf(format, args...))
	}
	if o.Accumulate == 0 {
		o.Accumulate = 1
	}
	if o.DType == "" {
		o.DType = "float32"
	}
	if o.NaN == "" {
		o.NaN = nanStop
	}
	if o.Profile == "" {
		o.Profile = envvar.Profile.Get("")
	}
	if o.Profile != "" {
		if _, _, err := trace.ParseSteps(o.Profile); err != nil {
			return fail("Profile (COHORT_PROFILE): %v", err)
		}
	}
	if o.Unproved == "" {
		o.Unproved = unprovedWarn
	}
	if o.Keep == 0 {
		o.Keep = 2
	}
	if o.SaveTo == nil && strings.TrimSpace(o.Out) != "" {
		o.SaveTo = storage.Dir(o.Out)
	}
	if o.SaveDeadline == 0 {
		o.SaveDeadline = saveDeadline
	}
	if o.Clip == 0 {
		o.Clip = math.Inf(1)
	}
	switch {
	case strings.TrimSpace(o.Out) == "":
		return fail("Out must name the run's directory")
	case o.Steps == 0 && o.Epochs == 0, o.Steps != 0 && o.Epochs != 0:
		return fail("want either Steps or Epochs, got %d and %v", o.Steps, o.Epochs)
	case o.Steps < 0 || !(o.Epochs >= 0) || math.IsInf(o.Epochs, 1):
		return fail("%d steps, %v epochs: neither may be negative or infinite", o.Steps, o.Epochs)
	case o.Epochs > 0 && (numSamples < 1 || o.Batch < 1):
		return fail("%v epochs of %d samples in batches of %d: Task.Samples and Batch must be at least 1", o.Epochs, numSamples, o.Batch)
	case o.Accumulate < 0, o.EvalEvery < 0, o.SaveEvery < 0, o.Keep < 0, o.KeepEvery < 0, o.KeepBest < 0, o.SaveLimit < 0, o.Patience < 0, !(o.MinDelta >= 0), !(o.Clip > 0):
		return fail("Accumulate %d, EvalEvery %d, SaveEvery %d, Keep %d, KeepEvery %d, KeepBest %d, SaveLimit %d, Patience %d, MinDelta %v, Clip %v: none may be negative",
			o.Accumulate, o.EvalEvery, o.SaveEvery, o.Keep, o.KeepEvery, o.KeepBest, o.SaveLimit, o.Patience, o.MinDelta, o.Clip)
	}
	if o.Patience > 0 && o.EvalEvery == 0 {
		return fail("Patience %d counts evaluations, of which there is one at the end alone: set EvalEvery", o.Patience)
	}
	if _, ok := autocasts[o.DType]; !ok {
		return fail("DType is %q, want float32 or bfloat16", o.DType)
	}
	if !isNaNPolicy(o.NaN) {
		return fail("NaN is %q, want %s", o.NaN, strings.Join(nanPolicies, " or "))
	}
	if o.Unproved != unprovedWarn && o.Unproved != unprovedStop {
		return fail("Unproved is %q, want %s or %s", o.Unproved, unprovedWarn, unprovedStop)
	}
	o.length = "Steps"
	switch {
	case o.Config != nil && o.Epochs > 0:
		o.length = "epochs (--epochs)"
	case o.Config != nil:
		o.length = "steps (--steps)"
	case o.Epochs > 0:
		o.length = "Epochs"
	}
	if o.Epochs > 0 {
		const most = 1 << 53 // a float64 does not hold all larger whole numbers
		steps := math.Ceil(o.Epochs * float64(numSamples) / float64(o.Batch))
		if steps > most {
			return fail("%v epochs of %d samples in batches of %d are %v steps, want at most %d", o.Epochs, numSamples, o.Batch, steps, int64(most))
		}
		o.Steps = max(1, int(steps))
	}
	return o, nil
}
