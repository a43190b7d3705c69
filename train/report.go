// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

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
	Model           string
	DType           string // that is computed in
	NumParams       int
	Data            string
	TrainBytes      int64
	ValidationBytes int64
	GzipBitsPerByte float64 // of the evaluated text, the figure to beat
	Ranks, Threads  int
	Transport       string
	Interface       string // at which the other ranks reach this one; "" if by none
	FirstStep       int    // steps done before
	Steps           int
	Resumed         string // the checkpoint, "" for a new run
}

// Step is one step that was done.
type Step struct {
	Step     int
	Loss     float64 // mean over the tokens of all ranks, in nats; may be NaN or infinite if the step was left out
	Tokens   int     // of all ranks
	Duration time.Duration
	Skipped  int // steps left out since the run was started or resumed, with this one
}

// Evaluation is the model's quality on the validation text.
type Evaluation struct {
	Step        int
	BitsPerByte float64
}

// Saved is a checkpoint that was written.
type Saved struct {
	Step int
	Path string
}

// Finish is the end of a run.
type Finish struct {
	Steps       int
	BitsPerByte float64
	Prompt      string // that the sample goes on from
	Sample      string // "" for none
	Checkpoint  string
	Out         string
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

// start describes the run.
func (r *lmRun) start(saved *savedRun) Start {
	s := Start{
		Model: fmt.Sprintf("GPT, %d %s of width %d, %d tokens of context, %d BPE tokens",
			r.cfg.Layers, plural(r.cfg.Layers, "layer"), r.cfg.Width, r.cfg.Context, r.model.Config.Vocab),
		DType:     r.cfg.DType,
		NumParams: nn.NumParams(r.model), Data: r.corpus.Name,
		TrainBytes: r.corpus.Train.Size(), ValidationBytes: r.corpus.Validation.Size(),
		Ranks: r.group.Size(), Threads: tensor.NumThreads(), Transport: r.group.Transport(), Interface: r.group.Interface(),
		FirstStep: r.step, Steps: r.cfg.Steps,
	}
	if saved != nil {
		s.Resumed = saved.checkpoint.Path
	}
	if r.group.Rank() == 0 {
		// Only for comparison: a text that cannot be read fails where it is used.
		s.GzipBitsPerByte, _ = r.validation.GzipBitsPerByte()
	}
	return s
}
