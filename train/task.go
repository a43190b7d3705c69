// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// Task is what is trained: all that the loop does not know. Every rank makes
// one, with the same model, and gives it to [Run]. B is a batch of one rank.
//
// Model, Loss, Optimizer and Feed must be there; the rest may be left out.
type Task[B any] struct {
	Name  string // "lm": errors begin with "train lm"
	About About

	// Model is an nn.Module or nn.ModuleN. Run wraps it in a Strategy. Loss, Evaluate
	// and Finish get the wrapped model, which is both an nn.Module and an nn.ModuleN
	// and takes what the model does. Do not call the model itself once Run has it:
	// its parameters may be shards.
	Model any
	// Strategy spreads the model over the ranks; every rank calls it once, before
	// Optimizer. nil is DDP, and the model as it is on one rank.
	Strategy func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error)
	// Axes say which ranks take samples of their own; by default all do.
	Axes Axes

	// Weights are the tensors that are saved, in WeightsFile; nil is the
	// strategy's StateDict, "" model.safetensors.
	Weights     func() nn.NamedTensors
	WeightsFile string

	// Loss runs the model, as it is wrapped, on a batch and returns the mean
	// loss of its samples, or of what Weigh says: tensor.CrossEntropy(c.Call(model.(nn.Module), x), y). Where
	// ranks may share the classes or the sequence of a sample, call the loss as a module:
	// c.CallN(&nn.CrossEntropyLoss{}, c.Call(model.(nn.Module), x), y)[0]. A pipeline
	// calls Loss more than once for a batch, and may end the call by a panic.
	Loss func(c *nn.Ctx, model any, batch B) *tensor.Tensor
	// Weigh says how much of a batch counts in the loss of a step, such as the number of tokens
	// whose loss Loss has the mean of. The loss of a step is then the mean over what counts in
	// the batches of all ranks and passes, however these are shared out. nil: each sample
	// weighs the same.
	Weigh func(batch B) float64
	// Blank makes a batch of the size of Feed's, whose values mean nothing. With it Run
	// predicts before the first step how much memory a step takes: it calls Loss once on
	// tensor.Meta. nil is no prediction.
	Blank func() B
	// Around steps in on the passes of training, such as nn.Recompute, and on those on
	// tensor.Meta that predict a step.
	Around []nn.Interceptor

	// Elsewhere is the part of the model that lies elsewhere than in the parameters of Model,
	// such as on parameter servers; nil for none. A run with it saves nothing when it fails.
	Elsewhere Elsewhere

	// Optimizer makes the optimizer of those parameters of Model that are trained;
	// params are all of them. Run calls it once the model is spread over the ranks,
	// so that the optimizer's state is as large as what this rank holds of a parameter.
	Optimizer func(params []*nn.Parameter) optim.Optimizer
	Schedule  optim.Schedule // nil leaves the learning rates as they are
	// Plateau, in place of a Schedule, lowers the learning rates when the first
	// metric gets no better; its Mode is "max" where higher is better. nil is none.
	Plateau *optim.PlateauOptions

	// Feed makes this rank's batches, from where a saved run was or from the
	// start. A *data.Loader is one. Run closes it.
	Feed func(ctx context.Context, from data.LoaderState) (Feed[B], error)
	// Contents returns what the data of this rank hold: checksums by the names of files. Ranks
	// compare them before the model is spread. nil compares only what Feed says of its state.
	Contents func(ctx context.Context) (map[string]string, error)
	Samples  int               // in an epoch; 0 where there are no epochs
	Size     func(batch B) int // of a batch in Unit, for the rate; nil counts nothing
	Unit     string            // "tokens", "images"

	// Evaluate says how good the wrapped model is. Every rank calls it after the same
	// step, for it may use the group. Where parameters are sharded, a pass gathers them,
	// so all ranks run as many passes. What rank 0 returns counts; others may
	// return none. The first metric decides which checkpoint is the best. nil is no
	// evaluation.
	Evaluate func(ctx context.Context, model any) (Metrics, error)
	// Files writes what a checkpoint needs besides the weights, on rank 0:
	// config.json, a tokenizer, names of classes.
	Files func(w *checkpoint.Writer) error
	// Finish says what the user sees at the end. Every rank calls it, for it may run
	// the wrapped model. What rank 0 returns counts; others may return none.
	Finish func(ctx context.Context, model any) (Ending, error)
}

// Elsewhere is a part of a model that does not lie in the ranks. Checkpoints have it beside the
// weights and the state of the optimizer. All ranks call its methods in the same order.
type Elsewhere interface {
	// NumParams is the number of its parameters.
	NumParams() int
	// Parts are what this rank has of it in a checkpoint. Fetch fills them.
	Parts() (weights, optimizer []checkpoint.Part)
	Fetch(ctx context.Context) error
	// Restore takes the values that a checkpoint has put into Parts. Anew begins a run that
	// has no checkpoint.
	Restore(ctx context.Context) error
	Anew(ctx context.Context) error
	// Moved ends a step. done is false where its update was left out, for its loss or its
	// gradients are not finite.
	Moved(ctx context.Context, done bool) error
}

// About describes a task to people.
type About struct {
	Model  string // "GPT, 3 layers of width 96"
	Data   string // "digits: 1437 images to train on, 360 to validate"
	Given  string // settings that the user gave, and where; "" if none
	Goal   string // what the first metric is to reach; "" for none
	Beside string // what stands beside the first metric at the end, such as the figure of a peer
}

// Metric is one figure of an evaluation.
type Metric struct {
	Name   string // in JSON, after val_: "bits_per_byte"
	Value  float64
	Higher bool   // is better
	Unit   string // for people: "bits per byte"; "%" prints a share of 1 in per cent
}

// String prints a metric for people.
func (m Metric) String() string {
	name := strings.ReplaceAll(m.Name, "_", " ")
	switch m.Unit {
	case "":
		return fmt.Sprintf("%s %.4g", name, m.Value)
	case "%":
		return fmt.Sprintf("%s %.2f %%", name, 100*m.Value)
	default:
		return fmt.Sprintf("%.3f %s", m.Value, m.Unit)
	}
}

// Metrics are the figures of an evaluation; the first is the one that counts.
type Metrics []Metric

// String prints all of them.
func (ms Metrics) String() string {
	texts := make([]string, len(ms))
	for i, m := range ms {
		texts[i] = m.String()
	}
	return strings.Join(texts, ", ")
}

// Ending is what a task leaves its user with.
type Ending struct {
	Title string // "the model writes"
	Text  string // below it
	Key   string // of Text in JSON: "sample"
	Next  string // what to give to cohort next: "generate --from out/lm"
}
