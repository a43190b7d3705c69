// SPDX-License-Identifier: Apache-2.0

package train

import "time"

// Reporter is told how a run goes. It is used on rank 0 by one goroutine.
type Reporter interface {
	Start(Start)
	Step(Step)
	Evaluation(Evaluation)
	Saved(Saved)
	Finish(Finish)
	// Notice is something that the user should know.
	Notice(text string)
}

// Start describes a run before its first step.
type Start struct {
	About
	DType          string // that is computed in
	NumParams      int
	Ranks, Threads int
	Strategy       string // how the model is spread over the ranks: "DDP over 4 ranks"
	Sharding       string // what of the model ranks share out, and what each holds of it; "" for nothing
	Memory         string // what a rank's tensors will hold in a step; "" where it was not predicted
	Transport      string
	Interface      string // at which the other ranks reach this one; "" if by none
	FirstStep      int    // steps done before
	Steps          int
	Resumed        string // the checkpoint, "" for a new run
}

// Step is one step that was done.
type Step struct {
	Step     int
	Loss     float64 // mean over all ranks; may be NaN or infinite if the step was left out
	Size     int     // of the batches of all ranks, in Unit
	Unit     string  // "tokens"; "" where nothing is counted
	Duration time.Duration
	Skipped  int // steps left out since the run was started or resumed, with this one
	Replaced int // samples of all ranks that could not be made and were replaced since then

	LearningRate float64 // by which the step moved the first group of parameters
	GradNorm     float64 // of all gradients together, before clipping; may be NaN or infinite
	Epoch        float64 // how often the run has gone through its samples; NaN if they have no end
}

// Evaluation is the model's quality after a step.
type Evaluation struct {
	Step    int
	Metrics Metrics
}

// Saved is a checkpoint that was written.
type Saved struct {
	Step int
	Path string
}

// Finish is the end of a run.
type Finish struct {
	Ending
	Steps      int
	Metrics    Metrics // of the last evaluation; nil if this process did none
	Best       *Best   // nil if that is the last one, or none is kept
	Checkpoint string
	Out        string
	Goodput    *Goodput // where the time went; nil if no step was done
}

// Best is the best evaluation of a run, and where the weights of that step are.
type Best struct {
	Step   int
	Metric Metric
	Path   string
}

// Discard is a reporter that reports nothing.
var Discard Reporter = discard{}

type discard struct{}

func (discard) Start(Start)           {}
func (discard) Step(Step)             {}
func (discard) Evaluation(Evaluation) {}
func (discard) Saved(Saved)           {}
func (discard) Finish(Finish)         {}
func (discard) Notice(string)         {}
