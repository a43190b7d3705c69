// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// lay is how one parameter lies on the axes beside fsdp. A [Parallel] keeps one for each
// parameter, and the parts write it. Nobody but Parallelize cuts a parameter: a part says by
// at where the axis cuts it, and Parallelize then takes this rank's boxes of the whole
// (mesh.Boxes), also on tensor.Meta.
type lay struct {
	shape []int                     // of the whole parameter
	at    map[string]mesh.Placement // axis → Shard or StridedShard; absent is Replicate
	owes  map[string]bool           // axes over which the gradient is summed

	// Of a pipeline. A parameter that no stage of this rank reads is away: it stays on tensor.Meta,
	// and has no gradient here. One that several ranks have is tied: second is true on all of
	// these ranks but one, and they leave it out of norms and of what is saved.
	away, second bool
}

// splitter is one way to split a model, as a [Parallel] composes it with the others: that of one
// axis. It lives in a file of its own: tensor_parallel.go, pipeline.go, expert_parallel.go,
// context_parallel.go. A Parallel has only the parts whose axes have two ranks or more.
//
// At set-up, Parallelize makes the parts (newTensorParallel and so on). Then, in the order tp, ep,
// cp, pp, it calls lay of each. When all ranks have come to the same text of the parts and of the
// lays, it calls join of each part, cuts the parameters, and makes the engine, which sums gradients
// as the lays say.
//
// In a pass, the parts step in as interceptors, outermost first: pp, cp, ep, tp. Then comes the
// engine, and inside of it what a pipeline has there (split.inside). So next of InterceptParam gives a part this rank's cut of the parameter, with what
// fsdp has gathered, and the tensor is the leaf of the gradient. The call of the model itself
// is intercepted too (module == Parallel.Model): this is where a part cuts inputs, and where it
// makes outputs whole in an evaluation (c.Training() is false).
//
// All interceptors run on tensor.Meta too: for [Predict], and for the dry run of a pipeline. A
// collective of a part on values of Meta is not made. The part counts its bytes (see meter), and
// goes on with a result of the right shape. That holds for the forward and the backward pass.
//
// In the first training pass the sharding types are checked (sharding.Of(c.Tape())): the axes are
// replicate, fsdp, ep and cp with samples, or parts of them, of their own (Data), and tp without.
// The engine gives parameters their types by their lays. What a part communicates needs
// sharding.Pass.Take and Give.
type splitter interface {
	nn.Interceptor

	// axis is the axis of the mesh that the part is for.
	axis() string
	// lay writes how the axis cuts each parameter, and what gradients owe besides the default:
	// all of replicate, fsdp, ep and cp. An error tells where (module path) and what to do. It
	// does not communicate: ranks may fail alone.
	lay() error
	// agreed is what all ranks must have in common: settings, a plan, shapes at boundaries, a
	// line each. Where ranks differ, the error shows the first line that does.
	agreed() string
	// join makes what needs the other ranks, such as groups. All ranks come to it.
	join(ctx context.Context) error
	// String says what the axis splits, for the first lines of a run: "heads, MLP and
	// vocabulary; time between blocks".
	String() string
}

// A splitter may have these methods as well.
type (
	// stepper runs the passes of a step in place of [runPasses]: a pipeline. The passes run
	// under Parallel.NoSync, and Parallel.reduce(ctx) then sums the gradients once. The loss is
	// that of this rank's samples on all ranks that take them.
	stepper interface {
		step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error)
	}
	// lossSharer has a share of the loss on each rank of its axis: sumLoss returns their sum.
	lossSharer interface {
		sumLoss(ctx context.Context, loss *tensor.Tensor) (*tensor.Tensor, error)
	}
	// meter counts what it sends: sentBytes returns how many bytes this rank has given to others
	// since the beginning, or would have given on tensor.Meta. [Predict] asks it before and after
	// a pass.
	meter interface{ sentBytes() int64 }
)

// layOf returns how a parameter lies.
func (p *Parallel) layOf(q *nn.Parameter) *lay { return p.lays[q] }
