// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// pipePass is one pass over the model on this rank: the forward and backward pass of one stage on
// one microbatch, or an evaluation, which runs all stages of the rank.
//
// The pass begins at the beginning of the model. Calls of stages that are not the pass's run for
// their shapes alone, on tensor.Meta. Where a call of its stage has such a value among its
// inputs, the value has come from the rank that made it. At the first call behind its stage, a
// training pass stops.
type pipePass struct {
	q      *pipeline
	plan   *pipePlan
	c      *nn.Ctx
	stage  int // -1 for an evaluation
	number int // of the microbatch
	called bool
	ended  bool

	at     int  // the number of the next call
	inside bool // of a call
	inputs map[*tensor.Tensor]*tensor.Tensor
	values []*tensor.Tensor // by index: those that are here
	grads  []*tensor.Tensor // by index: of what has come from other stages
	sent   int              // values that have been sent, of numSends
	num    int
	in     *inbox
	out    *outbox
	close  func()
	loss   *tensor.Tensor
	owned  []*tensor.Tensor // memory of what was received
	works  []*dist.Work     // of an evaluation's messages

	// Of a rehearsal, in which all values are on tensor.Meta and nothing is sent: the tape of what
	// other stages' calls have made, and the bytes of what comes from other stages. nil for a pass.
	standIns *tensor.Tape
	received int64
	coming   map[int]*arrival // of an evaluation
}

// pipeProbe is a pass that only asks for the shapes of the inputs.
type pipeProbe struct {
	dry  bool // of the example
	text string
	plan *pipePlan
}

// pipelineRoot steps in on the call of the model, inside of all others: the other parts have cut
// the inputs there, and make outputs whole behind it.
type pipelineRoot struct{ q *pipeline }

// around adds what steps in for the pipeline to a carrier: outside of all else, so that what is
// recomputed gets what has come from other stages.
func (q *pipeline) around(c *nn.Ctx) *nn.Ctx {
	c.SetParamShapes(q.shapeOf)
	return c.Around(q)
}

// isLooking reports whether a pass is under way that asks for shapes, and computes nothing.
func (q *pipeline) isLooking() bool {
	return q != nil && (q.probe != nil || q.pass != nil && q.pass.standIns != nil)
}

// callModel calls the model without what sums gradients.
func (q *pipeline) callModel(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor {
	c = c.With(q.root)
	if m, ok := q.p.Model.(nn.Module); ok {
		return []*tensor.Tensor{c.Call(m, x[0])}
	}
	return c.CallN(q.p.Model.(nn.ModuleN), x...)
}

// InterceptCall runs the model in the pass that is under way.
func (r *pipelineRoot) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	q := r.q
	if module != q.p.Model || q.planner != nil {
		return next(c, x)
	}
	if q.probe != nil {
		if !c.Training() {
			c.Fail(stageError(-1, "Microbatch.Loss has called the model in an evaluation, which the ranks of other stages may not take part in: evaluate outside of Strategy.Step"))
		}
		plan, text, err := q.planOf(c, x, next, q.probe.dry)
		if err != nil {
			c.Fail(err)
		}
		if q.probe.plan, q.probe.text = plan, text; !q.stepped && !q.probe.dry {
			q.probe.text += fmt.Sprintf(", samples %08x", digestOf(x))
		}
		c.Stop()
	}
	s := q.pass
	switch {
	case s != nil && !c.Training():
		c.Fail(stageError(s.stage, "Microbatch.Loss has called the model in an evaluation, which the ranks of other stages do not take part in: evaluate outside of Strategy.Step"))
	case s == nil && c.Training():
		c.Fail(stageError(-1, "the model was called in a training pass outside of Strategy.Step, which runs the passes of a pipeline: train by Step"))
	case s == nil:
		return q.evaluate(c, x, next)
	case s.called:
		c.Fail(stageError(s.stage, "Microbatch.Loss has called the model twice, and a pipeline runs it once for each microbatch: put what calls it twice into a module, or divide the microbatch"))
	}
	s.begin(c, x)
	y := next(c, s.enter(x))
	return s.end(y)
}

// InterceptParam does nothing.
func (*pipelineRoot) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// signature tells apart passes with unlike plans.
func (q *pipeline) signature(c *nn.Ctx, x []*tensor.Tensor) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a training pass: %v", c.Training())
	if d := c.Tape().Autocast(); d != 0 {
		fmt.Fprintf(&b, ", autocast to %v", d)
	}
	if k := c.KVCache(); k != nil {
		fmt.Fprintf(&b, ", a cache of %d tokens", k.Len())
	}
	if d := c.Documents(); d != nil {
		fmt.Fprintf(&b, ", documents %v", d.Shape())
	}
	for i, t := range x {
		if t == nil {
			fmt.Fprintf(&b, ", input %d nil", i)
			continue
		}
		fmt.Fprintf(&b, ", input %d %v%v", i, t.DType(), t.Shape())
	}
	for _, p := range nn.Parameters(q.p.Model) {
		if p.Frozen {
			fmt.Fprintf(&b, ", %s frozen", p.Name())
		}
	}
	return b.String()
}

// planOf returns the plan of a pass, and its signature.
func (q *pipeline) planOf(c *nn.Ctx, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor, dry bool) (*pipePlan, string, error) {
	text := q.signature(c, x)
	if p := q.plans[text]; p != nil && !dry {
		return p, text, nil
	}
	plan, err := q.makePlan(c, x, next)
	if err != nil || dry {
		return plan, text, err
	}
	// A stage that reads other parameters than those that it has cannot be run.
	for p, stages := range plan.reads {
		for _, s := range stages {
			if q.isMine(s) && q.p.layOf(p) != nil && q.p.layOf(p).away {
				return nil, "", stageError(s, "it reads %s in a pass with %s, and did not read it in the dry run on PipelineConfig.Example, so this rank does not have it: the model must read the same parameters in each pass", p.Name(), text)
			}
		}
	}
	if len(q.plans) >= 64 { // lengths of sequences that come once
		clear(q.plans)
	}
	q.plans[text] = plan
	return plan, text, nil
}

// begin starts the pass with the inputs of the model.
func (s *pipePass) begin(c *nn.Ctx, x []*tensor.Tensor) {
	s.called, s.c = true, c
	s.values = make([]*tensor.Tensor, len(s.plan.values))
	s.grads = make([]*tensor.Tensor, len(s.plan.values))
	s.inputs = map[*tensor.Tensor]*tensor.Tensor{}
	if s.standIns != nil {
		c.ShapesOnly(true)
		s.standIns = c.Tape()
		c.ShapesOnly(false)
	}
	for _, v := range s.plan.values {
		if s.isMine(v.born) {
			s.num++
		}
	}
}

// isMine reports whether a stage is one that the pass runs.
func (s *pipePass) isMine(stage int) bool {
	if s.stage < 0 {
		return s.q.isMine(stage)
	}
	return s.stage == stage
}

// isElsewhere reports whether a value stands for one that another stage has made.
func (s *pipePass) isElsewhere(t *tensor.Tensor) bool {
	if s.standIns != nil {
		return t.Tape() == s.standIns
	}
	return t.Device() == tensor.Meta
}

// enter begins the first stage, and returns what the model takes.
func (s *pipePass) enter(x []*tensor.Tensor) []*tensor.Tensor {
	if s.isMine(0) {
		return x
	}
	s.c.ShapesOnly(true)
	m := metaOf(s.c.Tape(), x)
	for i, t := range m {
		if t != nil {
			s.inputs[t] = x[i]
		}
	}
	return m
}

// InterceptCall runs the call of a stage, or passes over one of another stage.
func (q *pipeline) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if q.planner != nil {
		return q.planner.call(c, module, x, next)
	}
	s := q.pass
	if s == nil || !s.called || s.ended || s.inside || c.Tape() != s.c.Tape() || q.open[module] {
		return next(c, x)
	}
	return s.call(c, module, x, next)
}

// InterceptParam fails for a parameter that this rank does not have.
func (q *pipeline) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	if l := q.p.layOf(p); l != nil && l.away && q.planner == nil {
		c.Fail(stageError(-1, "rank %d reads %s, which its stages did not read in the dry run, so it does not have the parameter: the model must read the same parameters in each pass", q.rank, p.Name()))
	}
	return next(c)
}

// call runs a call that lies in one stage.
func (s *pipePass) call(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	n := s.at
	if n >= len(s.plan.calls) || !s.q.isSame(s.plan.calls[n].module, module) {
		s.c.Fail(stageError(s.stage, "call %d of the model is of %s, and it was another one in the dry run for inputs of the same shapes: the calls of a model must not depend on values", n, s.q.pathOf(module)))
	}
	s.at++
	call := &s.plan.calls[n]
	s.see(n, call.in, x, false)
	if s.isMine(call.stage) {
		c.ShapesOnly(false)
		x = s.bring(call.in, x, func(i int) string { return fmt.Sprintf("input %d of the call of %s", i, call.path) })
	} else {
		if s.stage >= 0 && call.stage > s.stage && s.sent == s.num {
			c.Stop()
		}
		c.ShapesOnly(true)
		x = s.away(x)
	}
	s.inside = true
	tape := c.Tape() // to which an evaluation may have come in this call
	mark := tape.Mark()
	var y []*tensor.Tensor
	if call.opaque && c.IsShapesOnly() {
		y = metaOf(tape, x[:1])
	} else {
		y = next(c, x)
	}
	tape.FreeSince(mark, y...)
	s.inside = false
	s.see(n, call.out, y, true)
	return y
}

// isSame reports whether a call is of the module that the dry run has called. Modules that a model
// makes for a call are alike if they are of one type.
func (q *pipeline) isSame(planned, called any) bool {
	if planned == called {
		return true
	}
	_, a := q.paths[planned]
	_, b := q.paths[called]
	return !a && !b && reflect.TypeOf(planned) == reflect.TypeOf(called)
}

// see takes up the values that other stages have a use for, where they come by first.
func (s *pipePass) see(call int, values []*pipeValue, ts []*tensor.Tensor, out bool) {
	for i, v := range values {
		if v == nil || v.seen != call || v.isOut != out || i >= len(ts) || ts[i] == nil || !s.isMine(v.born) || s.values[v.index] != nil {
			continue
		}
		t := ts[i]
		if s.isElsewhere(t) {
			s.c.Fail(stageError(v.born, "%s is on device %s, as if another stage had made it: make new values on the device that Ctx.Device returns", v.what, tensor.Meta.Name()))
		}
		if !slices.Equal(t.Shape(), v.shape) || t.DType() != v.dtype {
			s.c.Fail(stageError(v.born, "%s is %v%v, and was promised as %v%v by a run for shapes alone: the shapes in a model must follow from the shapes of its inputs", v.what, t.DType(), t.Shape(), v.dtype, v.shape))
		}
		if t.NeedsGrad() != v.grad && s.stage >= 0 {
			s.c.Fail(stageError(v.born, "gradients flow into %s: %v, and in the dry run: %v; freeze parameters alike on all ranks", v.what, t.NeedsGrad(), v.grad))
		}
		s.values[v.index] = t
		s.sent++
		s.send(v, t)
	}
}

// bring returns the inputs of a call of this stage, with what other stages have made.
func (s *pipePass) bring(values []*pipeValue, x []*tensor.Tensor, what func(i int) string) []*tensor.Tensor {
	out := slices.Clone(x)
	for i, t := range x {
		if t == nil || !s.isElsewhere(t) {
			continue
		}
		if v := values[i]; v != nil {
			if s.values[v.index] == nil {
				s.values[v.index] = s.receive(v)
			}
			out[i] = s.values[v.index]
			continue
		}
		value, p := s.c.StandsFor(t)
		switch {
		case s.inputs[t] != nil:
			out[i] = s.inputs[t]
		case p != nil:
			out[i] = s.c.Param(p)
		case value != nil:
			out[i] = s.c.Tape().Const(value)
		default:
			s.c.Fail(stageError(s.stage, "%s, of shape %v, is on device %s and comes from no other stage: make new values on the device that Ctx.Device returns, not on that of an input", what(i), t.Shape(), tensor.Meta.Name()))
		}
	}
	return out
}

// away returns the inputs of a call of another stage: stand-ins for values that are here.
func (s *pipePass) away(x []*tensor.Tensor) []*tensor.Tensor {
	out := x
	for i, t := range x {
		if t == nil || s.isElsewhere(t) {
			continue
		}
		if &out[0] == &x[0] {
			out = slices.Clone(x)
		}
		out[i] = metaOf(s.c.Tape(), x[i:i+1])[0]
	}
	return out
}

// end ends the call of the model, and returns what it returned.
func (s *pipePass) end(y []*tensor.Tensor) []*tensor.Tensor {
	if s.at != len(s.plan.calls) {
		s.c.Fail(stageError(s.stage, "the model has made %d calls of modules, and made %d in the dry run for inputs of the same shapes: the calls of a model must not depend on values", s.at, len(s.plan.calls)))
	}
	s.see(s.at, s.plan.outputs, y, false)
	if s.sent != s.num {
		s.c.Fail(stageError(s.stage, "%d of the values that later stages read have not come by in a call of a module", s.num-s.sent))
	}
	last := s.q.config.NumStages - 1
	if s.stage >= 0 && s.stage != last {
		s.c.Stop()
	}
	s.c.ShapesOnly(false)
	s.ended = true
	if s.stage < 0 {
		return s.spread(y)
	}
	return s.bring(s.plan.outputs, y, func(i int) string { return fmt.Sprintf("result %d of the model", i) })
}

// leaf brings a value that has come from another stage under the tape of the pass. at is its type
// over the axes beside pp, where the pass is checked.
func (s *pipePass) leaf(v *pipeValue, t, at *tensor.Tensor) *tensor.Tensor {
	t.SetName(v.what)
	if !v.grad || s.stage < 0 {
		in := s.c.Tape().Const(t)
		s.came(in, at)
		return in
	}
	in := s.c.Tape().Leaf(t)
	s.came(in, at)
	in.OnGrad(func(g *tensor.Tensor) *tensor.Tensor {
		s.grads[v.index] = g.Contiguous().Keep()
		return nil
	})
	return in
}

// evaluate runs all stages of this rank, and returns what the model returns, on all ranks.
func (q *pipeline) evaluate(c *nn.Ctx, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	plan, _, err := q.planOf(c, x, next, false)
	if err != nil {
		c.Fail(err)
	}
	s := &pipePass{q: q, plan: plan, stage: -1, coming: map[int]*arrival{}}
	q.pass = s
	defer func() { q.pass = nil }()
	s.begin(c, x)
	s.expect(c)
	y := s.end(next(c, s.enter(x)))
	for _, w := range s.works {
		if err := w.Wait(context.WithoutCancel(c)); err != nil {
			c.Fail(fmt.Errorf("pipeline: send to another stage: %w", err))
		}
	}
	return y
}

// spread gives all ranks the results of the model.
func (s *pipePass) spread(y []*tensor.Tensor) []*tensor.Tensor {
	out := slices.Clone(y)
	for i, t := range y {
		if t == nil {
			continue
		}
		from := s.q.config.NumStages - 1
		if v := s.plan.outputs[i]; v != nil {
			from = v.born
		} else if s.plan.isInput[i] {
			if in := s.inputs[t]; in != nil {
				out[i] = in
			}
			continue
		}
		root := s.q.rankOf(from)
		switch {
		case s.q.rank == root && t.Device() == tensor.Meta:
			s.c.Fail(stageError(from, "result %d of the model is on device %s, as if another stage had made it: make new values on the device that Ctx.Device returns", i, tensor.Meta.Name()))
		case s.q.rank == root:
			t = t.Contiguous()
		default:
			t = tensor.New(tensor.CPU(), t.DType(), t.Shape()...)
		}
		if err := s.q.all.broadcastFrom(s.c, t, root); err != nil {
			s.c.Fail(fmt.Errorf("pipeline: broadcast result %d of the model from stage %d: %w", i, from, err))
		}
		if s.q.rank != root {
			out[i] = s.c.Tape().Const(t)
		}
	}
	return out
}

// lossOf checks what Microbatch.Loss has returned.
func (s *pipePass) lossOf(loss *tensor.Tensor) error {
	if !s.called {
		return errors.New("pipeline: Microbatch.Loss has not called the model: it must call the strategy")
	}
	return checkLoss(loss)
}
