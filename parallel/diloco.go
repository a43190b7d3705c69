// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/islands"
	"github.com/cohort-ml/cohort/tensor"
)

// DiLoCoOptions say how a [DiLoCo] exchanges what islands have learned. Every and Islands are
// required. The zero value of each other field is its default.
type DiLoCoOptions struct {
	// Every is the number of inner steps in which each parameter is exchanged once: H.
	Every int
	// Steps is the number of inner steps of the run, a multiple of Every that is the same on all
	// islands. 0 is not compared: then an island that does fewer steps leaves the others to themselves.
	Steps int
	// Fragments is into how many parts the parameters are divided, which are exchanged one after
	// the other; 0 is 1. It divides Every.
	Fragments int
	// Delay is after how many inner steps an exchange is taken: at most Every / Fragments; 0 is a
	// fifth of that. If it is not over by then, the steps go on, and it is taken after the step in
	// which it ends, at the latest when the next one begins. NoDelay waits for each exchange.
	Delay   int
	NoDelay bool
	// Mix is the share of its own parameters that an island keeps when it takes an exchange: it goes
	// on from Mix times its own and 1 - Mix times the new outer parameters. 0 is a half, with
	// NoDelay none. More than a half keeps more of what the island has learned during the delay, and
	// lets islands drift apart.
	Mix float64

	LR       float64 // of the outer optimizer; 0 is DefaultOuterLR
	Momentum float64 // Nesterov's, of the outer optimizer; 0 is DefaultOuterMomentum, and -1 is none
	// Average makes each exchange the mean of the parameters (local SGD), and not a step of an
	// outer optimizer: LR is 1, and there is no momentum.
	Average bool
	// Exact sends outer gradients as float32, with four times the bytes of int8.
	Exact bool

	// Islands says which island this is, and where the others are. Part, Parts and Settings are
	// filled in.
	Islands islands.Config
}

// The defaults of the outer optimizer are those of DiLoCo's paper. With them the outer parameters
// move seven times as far as the islands, where these go on in one direction. A long run needs that:
// 0.8 and 0.5, 1.6 times as far, had 4 % more loss after 8000 steps of the main recipe.
const (
	DefaultOuterLR       = 0.7
	DefaultOuterMomentum = 0.9
)

// resolve fills in the defaults.
func (o DiLoCoOptions) resolve() (DiLoCoOptions, error) {
	o.Fragments = cmp.Or(o.Fragments, 1)
	if o.Every < 1 {
		return o, fmt.Errorf("Every is %d inner steps between exchanges: want at least 1", o.Every)
	}
	if o.Fragments < 1 || o.Every%o.Fragments != 0 {
		return o, fmt.Errorf("Every is %d inner steps and there are %d fragments, one of which is exchanged at a time: choose numbers of which the second divides the first", o.Every, o.Fragments)
	}
	if o.Steps < 0 || o.Steps%o.Every != 0 {
		return o, fmt.Errorf("Every is %d inner steps, which does not divide the %d Steps of the run: change one of them", o.Every, o.Steps)
	}
	between := o.Every / o.Fragments
	switch {
	case o.NoDelay && o.Delay != 0:
		return o, fmt.Errorf("the Delay is %d steps, and NoDelay is set: leave one of them out", o.Delay)
	case o.NoDelay:
	case o.Delay < 0 || o.Delay > between:
		return o, fmt.Errorf("the Delay is %d steps, and the next exchange begins after %d (Every %d / %d fragments): want 1 to %d, or 0 for %d", o.Delay, between, o.Every, o.Fragments, between, max(between/5, 1))
	default:
		o.Delay = cmp.Or(o.Delay, between/5, 1)
		o.Mix = cmp.Or(o.Mix, 0.5)
	}
	if !(o.Mix >= 0 && o.Mix < 1) {
		return o, fmt.Errorf("a Mix of %v of the island's own parameters: want from 0 to below 1", o.Mix)
	}
	if o.Average {
		if o.LR != 0 || o.Momentum != 0 {
			return o, fmt.Errorf("LR is %v and Momentum %v, and Average needs neither: leave them out", o.LR, o.Momentum)
		}
		o.LR = 1
		return o, nil
	}
	o.LR, o.Momentum = cmp.Or(o.LR, DefaultOuterLR), cmp.Or(o.Momentum, DefaultOuterMomentum)
	if o.Momentum == -1 {
		o.Momentum = 0
	}
	if !(o.LR > 0) || !(o.Momentum >= 0 && o.Momentum < 1) {
		return o, fmt.Errorf("LR is %v and Momentum %v of the outer optimizer: want an LR above 0, and a Momentum from 0 to below 1", o.LR, o.Momentum)
	}
	return o, nil
}

// DiLoCo trains a model on islands that a slow link joins (Douillard et al. 2023, "DiLoCo";
// 2025, "Streaming DiLoCo"). An island is a rank, or the ranks of a job of its own with a [DDP] or an
// [FSDP] among them. Each island trains with its own, inner optimizer. Every so many steps the islands exchange how
// far they have come, and an outer optimizer moves the parameters of all by the mean: SGD with
// Nesterov's momentum. It is a [Strategy].
//
// What an island has come to is its outer gradient: the parameters after the last exchange less
// those of now. It travels as int8, with a scale for each 256 elements. What int8 leaves out is added to the next
// one (error feedback). All islands add up the same bytes in the same order, so the outer
// parameters are the same everywhere, bit for bit.
//
// An exchange goes on beside the next steps ([DiLoCoOptions.Delay]). When it is over the island goes
// on from a mean of its own parameters and the new outer ones ([DiLoCoOptions.Mix]): all of its own
// would add what it has learned meanwhile to where the others have gone too, and none of them would
// forget it. A run in which each exchange ends within its delay gives the same bits again.
//
// The islands meet in a store, see package islands. An island that is lost is left out after
// a while, and one that is started again takes the outer parameters from the others and takes part
// again. Buffers, such as the running statistics of a batch norm, and frozen parameters are not exchanged.
//
// A training loop calls [DiLoCo.Updated] after each step of the optimizer, [DiLoCo.Settle] before it
// saves, and [DiLoCo.Finish] at the end. Package train does.
type DiLoCo struct {
	// Model is the model of the inner strategy. Its parameters have the same names in the DiLoCo.
	Model any `name:""`

	inner     Strategy `name:"-"`
	group     *dist.Group
	o         DiLoCoOptions
	code      outerCode
	params    []*outerParam `name:"-"`
	fragments []fragment    `name:"-"`
	sharded   bool

	island   *islands.Island // nil on a rank to which another one hands what is exchanged
	met      bool
	resumed  bool             // the outer state was loaded
	counts   *tensor.Tensor   // of a checkpoint: next, since
	next     int              // the number of the next exchange
	since    int              // inner steps since the last one was posted
	fresh    bool             // one was posted after the last inner step
	coming   bool             // this island has come back, and has taken part in no exchange since
	under    chan exchangeEnd // the exchange that is under way; nil for none
	giving   chan error       // a state that is being given; nil for none
	end      context.CancelCauseFunc
	work     context.Context
	stats    DiLoCoStats
	onRound  func(Exchange)
	onClose  func()
	finished bool
}

// exchangeEnd is how an exchange has ended.
type exchangeEnd struct {
	round *islands.Round
	err   error
}

// DiLoCoStats are what the exchanges of an island have taken so far.
type DiLoCoStats struct {
	Exchanges                int
	SentBytes, ReceivedBytes int64         // of this rank's part
	Waited                   time.Duration // for which this rank stood still for other islands
}

// Exchange is an exchange that an island has taken, for [DiLoCo.OnExchange].
type Exchange struct {
	Number  int
	Members []int // the islands that took part
	Late    []int // islands that live and did not post in time
	Missed  bool  // this island was too late, and sends what it has with the next exchange
}

// NewDiLoCo has an island train with others. inner is the strategy of this island, a [*Single],
// [*DDP] or [*FSDP]. group is the ranks of this island. The islands meet in the first step.
//
// Make the inner optimizer as for the inner strategy.
func NewDiLoCo(inner Strategy, group *dist.Group, o DiLoCoOptions) (*DiLoCo, error) {
	o, err := o.resolve()
	if err != nil {
		return nil, fmt.Errorf("diloco: %w", err)
	}
	d := &DiLoCo{inner: inner, group: group, o: o, code: outerCode{exact: o.Exact}, counts: tensor.FromInt64([]int64{0, 0})}
	switch s := inner.(type) {
	case *Single:
		d.Model = s.Model
	case *DDP:
		d.Model = s.Model
	case *FSDP:
		d.Model, d.sharded = s.Model, group.Size() > 1
	default:
		return nil, fmt.Errorf("diloco: the strategy of an island is a %T: want a Single, a DDP or an FSDP", inner)
	}
	for _, p := range nn.Parameters(d.Model) {
		switch t := p.Data(); {
		case p.Frozen:
			continue
		case t.Device() == tensor.Meta:
			return nil, fmt.Errorf("diloco: %s has no values yet: materialize the model of the island first", p.Name())
		case t.DType() != tensor.Float32:
			return nil, fmt.Errorf("diloco: %s is %v: outer gradients are those of float32 parameters", p.Name(), t.DType())
		}
		d.params = append(d.params, newOuterParam(p))
	}
	if len(d.params) < o.Fragments {
		return nil, fmt.Errorf("diloco: %d fragments of %d parameters that are trained: want at most one for each", o.Fragments, len(d.params))
	}
	d.fragments = divideFragments(d.params, o.Fragments)
	d.work, d.end = context.WithCancelCause(context.Background())
	return d, nil
}

// settings is what must be the same on all islands.
func (d *DiLoCo) settings() string {
	model := crc32.NewIEEE()
	for _, p := range nn.Parameters(d.Model) {
		shape := p.Whole()
		if shape == nil {
			shape = p.Data().Shape()
		}
		fmt.Fprintf(model, "%s %v %v\n", p.Name(), shape, p.Frozen)
	}
	code := "int8"
	if d.code.exact {
		code = "float32"
	}
	steps := ""
	if d.o.Steps > 0 {
		steps = fmt.Sprintf("%d steps in all, ", d.o.Steps)
	}
	return fmt.Sprintf("(%severy %d steps in %d fragments, outer learning rate %v and momentum %v, %s, a model of %d parameters with the digest %08x)",
		steps, d.o.Every, d.o.Fragments, d.o.LR, d.o.Momentum, code, nn.NumParams(d.Model), model.Sum32())
}

// Forward runs a model that is an nn.Module.
func (d *DiLoCo) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return d.inner.Forward(c, x) }

// ForwardN runs a model that is an nn.ModuleN.
func (d *DiLoCo) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	return d.inner.ForwardN(c, x...)
}

// NoSync is that of the island.
func (d *DiLoCo) NoSync(fn func() error) error { return d.inner.NoSync(fn) }

// Step runs the passes of an inner step. The first one waits for the other islands.
func (d *DiLoCo) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	if !d.met {
		begun := time.Now()
		if err := d.meet(ctx); err != nil {
			return nil, fmt.Errorf("diloco: %w", err)
		}
		d.stats.Waited += time.Since(begun)
	}
	return d.inner.Step(ctx, microbatches)
}

// ClipGradNorm is that of the island: the gradients of an inner step.
func (d *DiLoCo) ClipGradNorm(ctx context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	return d.inner.ClipGradNorm(ctx, params, maxNorm)
}

// SyncBuffers is that of the island.
func (d *DiLoCo) SyncBuffers(ctx context.Context) error { return d.inner.SyncBuffers(ctx) }

// StateDict returns what this rank holds of the island's model.
func (d *DiLoCo) StateDict() nn.NamedTensors { return d.inner.StateDict() }

// Layout says how a parameter lies on the ranks of the island.
func (d *DiLoCo) Layout(p *nn.Parameter) mesh.Layout { return d.inner.Layout(p) }

// String says which island this is, and how it trains.
func (d *DiLoCo) String() string {
	c := d.o.Islands
	return fmt.Sprintf("DiLoCo every %d steps, island %d of %d: %v", d.o.Every, c.Island, max(c.Islands, 1), d.inner)
}

// Every returns the number of inner steps in which each parameter is exchanged once.
func (d *DiLoCo) Every() int { return d.o.Every }

// Islands returns how many islands there are, those included that are lost.
func (d *DiLoCo) Islands() int { return d.o.Islands.Islands }

// Stats returns what the exchanges have taken so far.
func (d *DiLoCo) Stats() DiLoCoStats {
	s := d.stats
	if d.island != nil {
		s.SentBytes, s.ReceivedBytes = d.island.Traffic()
	}
	return s
}

// OnExchange has fn called for each exchange that is taken, on the goroutine of the training loop.
func (d *DiLoCo) OnExchange(fn func(Exchange)) { d.onRound = fn }

// OnClose has fn called at the end of Close, when nothing uses the store any more.
func (d *DiLoCo) OnClose(fn func()) { d.onClose = fn }

// OuterState returns what this rank keeps for the outer optimizer, by the names of the parameters:
// "outer.", "momentum." and "residual.". Each lies as the parameter does. "exchanges" counts. The
// tensors are the strategy's own: a checkpoint saves them after [DiLoCo.Settle], and a run that
// resumes loads them before the first step and calls [DiLoCo.Resumed].
func (d *DiLoCo) OuterState() nn.NamedTensors {
	d.counts.CopyFrom(tensor.FromInt64([]int64{int64(d.next), int64(d.since)}))
	all := nn.NamedTensors{{Name: "exchanges", Tensor: d.counts}}
	for _, p := range d.params {
		all = append(all,
			nn.NamedTensor{Name: "outer." + p.param.Name(), Tensor: p.outer},
			nn.NamedTensor{Name: "momentum." + p.param.Name(), Tensor: p.momentum},
			nn.NamedTensor{Name: "residual." + p.param.Name(), Tensor: p.residual})
	}
	return all
}

// Resumed says that the tensors of OuterState have been loaded.
func (d *DiLoCo) Resumed() {
	n := d.counts.Int64s()
	d.next, d.since, d.resumed = int(n[0]), int(n[1]), true
}
