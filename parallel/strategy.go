// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"reflect"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Strategy is how a model is spread over ranks, as a training loop sees it. A
// loop that is written against it trains the same model on one rank ([Single]),
// on replicas ([DDP]), and in any other way that has these methods.
//
// Every rank makes the same calls in the same order: each of them may be a
// collective of the ranks that the model is spread over.
type Strategy interface {
	// Forward and ForwardN run the model on this rank's share of the batch. They
	// take and return what the model does; a model has one of the two, and the
	// other one fails the pass. After the Backward of a training pass, the
	// gradients that this rank's optimizer steps on are those of the mean over all
	// ranks' shares.
	//
	// Sharded parameters are gathered and released in here, a module at a time, by an
	// nn.Interceptor. A pipeline runs the stages of this rank. An evaluation calls the
	// strategy too, where the model alone is not whole on a rank.
	nn.Module
	nn.ModuleN

	// NoSync runs fn, whose passes add to the gradients without averaging them over
	// the ranks. The first pass after it averages all of them. It is for gradient
	// accumulation.
	//
	// Sharded parameters either keep whole gradients meanwhile or reduce them in
	// every pass: both give the same sums.
	NoSync(fn func() error) error

	// Step runs the training passes of a step, forward and backward. When it returns, the
	// gradients are those of the mean over all ranks' shares of the sum of the losses. They are
	// added to those that there are. It returns the sum of the losses of this rank's samples,
	// the same on all ranks that take these samples.
	//
	// Replicas run the passes one after the other, under NoSync but for the last. A pipeline
	// has several of them under way.
	Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error)

	// ClipGradNorm returns the Euclidean norm of the gradients of params over the
	// whole model, however it is spread, and the factor, at most 1, that brings it
	// down to maxNorm: what optim.Optimizer.Step takes. Both are float64 tensors of
	// no dims on the first parameter's device, the same on every rank; they are the
	// caller's, who may write them. The call does not wait for the device. The factor
	// is NaN where the norm is not finite.
	//
	// A replica has all gradients, and asks optim.ClipGradNorm. Where a rank holds
	// shards, or a stage, it adds up the squares of its own (each parameter once),
	// sums them over the ranks that hold the others, takes the root, and asks
	// optim.ClipScale.
	ClipGradNorm(ctx context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error)

	// SyncBuffers makes the buffers of the model, such as running statistics, the
	// same on all ranks. A loop calls it before it evaluates. What is saved is what
	// rank 0 has, with or without it.
	SyncBuffers(ctx context.Context) error

	// StateDict returns what this rank holds of the model's state, under the
	// names that the model itself has. A checkpoint saves it, and a resumed run
	// loads it after the strategy was made. The tensors are the model's own.
	//
	// Of a replica that is the model's whole state. Of a sharded parameter it is
	// this rank's shard.
	StateDict() nn.NamedTensors

	// Layout says how a parameter lies on the ranks, and with it its gradient and its optimizer
	// state. The layout of what is not spread has no mesh.
	Layout(p *nn.Parameter) mesh.Layout

	// String says how the model is spread, in a few words for the first lines of
	// a run: "DDP over 4 ranks".
	fmt.Stringer
}

var (
	_ Strategy = (*Single)(nil)
	_ Strategy = (*DDP)(nil)
	_ Strategy = (*FSDP)(nil)
	_ Strategy = (*Parallel)(nil)
	_ Strategy = (*DiLoCo)(nil)
	_ Strategy = (*DataParallel)(nil)

	_ nn.Interceptor = (*FSDP)(nil)
)

// checkModule fails for what cannot be called, and for a model that is sharded already.
func checkModule(model any) error {
	if v := reflect.ValueOf(model); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("the model is a nil %T: make it first", model)
	}
	if !callable(model) {
		return fmt.Errorf("a %T is no module: it needs a method Forward or ForwardN; see nn.Module and nn.ModuleN", model)
	}
	for _, p := range nn.Parameters(model) {
		if whole := p.Whole(); whole != nil {
			return fmt.Errorf("%s is a shard already, of shape %v of %v: the model belongs to an FSDP; build another to wrap it anew", p.Name(), p.Data().Shape(), whole)
		}
	}
	return nil
}

// callable reports whether m is called as a module.
func callable(m any) bool {
	_, one := m.(nn.Module)
	_, several := m.(nn.ModuleN)
	return one || several
}

// checkParams fails for a model whose state has no data, or of which a parameter
// can have no gradient.
func checkParams(model any) error {
	for _, s := range nn.StateDict(model) {
		if s.Tensor.Device() == tensor.Meta {
			return fmt.Errorf("%s is on device %s, which has no data: build the model on one that has, or give it a value by SetData, before it is wrapped", s.Name, tensor.Meta.Name())
		}
	}
	for _, p := range nn.Parameters(model) {
		if d := p.Data().DType(); !p.Frozen && !d.IsFloat() {
			return fmt.Errorf("%s is %v, which has no gradient: freeze it, or make it a buffer", p.Name(), d)
		}
	}
	return nil
}

// countRanks says how many there are: "1 rank", "4 ranks".
func countRanks(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}
