// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// StageError says what is wrong with the stages of a pipeline, or with what one of them does.
type StageError struct {
	Stage   int    // -1 for no one of them
	Problem string // what is wrong, where, and what to do
}

func (e *StageError) Error() string {
	if e.Stage < 0 {
		return "pipeline: " + e.Problem
	}
	return fmt.Sprintf("pipeline: stage %d: %s", e.Stage, e.Problem)
}

func stageError(stage int, format string, args ...any) *StageError {
	return &StageError{Stage: stage, Problem: fmt.Sprintf(format, args...)}
}

// pipePlan is what a dry run has found of a pass: which calls each stage makes, and which values
// go from stage to stage. Passes of the same signature have the same plan.
//
// The calls are those that lie in one stage: not the calls of modules around a cut, nor those
// inside of a call. They are numbered in the order in which they begin. The results of the model
// count as the inputs of one call more.
type pipePlan struct {
	calls   []pipeCall
	outputs []*pipeValue // by the results of the model; nil for those that do not cross
	isInput []bool       // by the results of the model: one is an input of the model itself
	values  []*pipeValue // those that cross, in the order in which they are seen
	reads   map[*nn.Parameter][]int
	said    string // by text
}

// pipeCall is a call that lies in one stage.
type pipeCall struct {
	module any
	path   string
	stage  int
	in     []*pipeValue // what crosses of its inputs and results; nil for what does not
	out    []*pipeValue
	// opaque: the module cannot run for shapes alone. Its result has the shape of its first input.
	opaque bool
}

// pipeValue is a value that a later stage reads than the one that makes it.
type pipeValue struct {
	index int
	born  int   // the stage that makes it
	uses  []int // the later stages that read it, in ascending order
	seen  int   // the call at which it is seen first, -1 for none yet
	isOut bool  // as a result of that call, not as an input
	grad  bool  // a gradient flows into it
	shape []int
	dtype tensor.DType
	what  string // for errors: "input 1 of the call of transformer.h.2"
}

// planner makes a plan. It steps in on the calls of a dry run, and observes its operations.
type planner struct {
	q      *pipeline
	c      *nn.Ctx
	plan   *pipePlan
	stage  int // in which the run is
	inside bool
	known  map[*tensor.Tensor]*pipeValue // what the stages have made, outside of calls
	inputs []*tensor.Tensor
}

// makePlan runs the model for shapes alone.
func (q *pipeline) makePlan(c *nn.Ctx, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) (plan *pipePlan, err error) {
	pl := &planner{q: q, plan: &pipePlan{reads: map[*nn.Parameter][]int{}}, known: map[*tensor.Tensor]*pipeValue{}}
	pl.c = c.ForShapes(pl.read)
	defer pl.c.Close()
	q.planner = pl
	defer func() { q.planner = nil }()
	defer pl.c.Recover(&err)
	pl.inputs = metaOf(pl.c.Tape(), x)
	pl.c.Tape().Observe(pl)
	y := next(pl.c, pl.inputs)
	if n := len(q.starts); pl.stage != n {
		return nil, stageError(pl.stage+1, "it begins at %s, which the model does not call after the beginning of stage %d: name modules in the order in which they are called", q.starts[pl.stage].path, pl.stage)
	}
	for i, t := range y {
		pl.plan.outputs = append(pl.plan.outputs, pl.use(t, len(pl.plan.calls), fmt.Sprintf("result %d of the model", i)))
		pl.plan.isInput = append(pl.plan.isInput, slices.Contains(pl.inputs, t))
	}
	pl.settle()
	return pl.plan, nil
}

// metaOf returns stand-ins of values on tensor.Meta, under a tape.
func metaOf(tape *tensor.Tape, x []*tensor.Tensor) []*tensor.Tensor {
	out := slices.Clone(x)
	for i, t := range x {
		if t != nil {
			m := tensor.New(tensor.Meta, t.DType(), t.Shape()...)
			m.SetName(t.Name())
			out[i] = tape.Const(m)
		}
	}
	return out
}

// call runs a call of the dry run.
func (pl *planner) call(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	q := pl.q
	if pl.inside || q.open[module] {
		return next(c, x)
	}
	path := q.pathOf(module)
	if k := q.startOf(module); k > pl.stage {
		if k != pl.stage+1 {
			c.Fail(stageError(k, "it begins at %s, which the model calls before %s, where stage %d begins: name modules in the order in which they are called", path, q.starts[pl.stage].path, pl.stage+1))
		}
		pl.stage = k
	}
	n := len(pl.plan.calls)
	call := pipeCall{module: module, path: path, stage: pl.stage}
	for i, t := range x {
		call.in = append(call.in, pl.use(t, n, fmt.Sprintf("input %d of the call of %s", i, path)))
	}
	pl.inside = true
	y, opaque := pl.inner(c, module, x, next)
	pl.inside = false
	call.opaque = opaque
	for i, t := range y {
		call.out = append(call.out, pl.made(t, n, fmt.Sprintf("result %d of the call of %s", i, path)))
	}
	pl.plan.calls = append(pl.plan.calls, call)
	return y
}

// inner runs what is inside of a call. A module that reads values cannot run for shapes alone:
// then its result is taken to have the shape of its first input, and its parameters are those of
// the stage.
func (pl *planner) inner(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) (y []*tensor.Tensor, opaque bool) {
	depth := c.Depth()
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		e, ok := v.(*tensor.Error)
		if !ok || len(x) == 0 || x[0] == nil || !strings.Contains(e.Error(), "device "+tensor.Meta.Name()) {
			panic(v)
		}
		c.Unwind(depth)
		flows := slices.ContainsFunc(x, func(t *tensor.Tensor) bool { return t != nil && t.NeedsGrad() })
		for _, p := range nn.Uses(module) {
			pl.read(p)
			flows = flows || !p.Frozen
		}
		if y, opaque = metaOf(c.Tape(), x[:1]), true; flows && x[0].DType().IsFloat() {
			y[0] = c.Tape().Leaf(y[0])
		}
	}()
	return next(c, x), false
}

// birth notes a value that the present stage makes. Whether a gradient flows into it is known
// when a call sees it: an operation is observed before it is recorded.
func (pl *planner) birth(t *tensor.Tensor) *pipeValue {
	v := &pipeValue{index: -1, born: pl.stage, seen: -1, shape: t.Shape(), dtype: t.DType()}
	pl.known[t] = v
	return v
}

// made notes a result of a call.
func (pl *planner) made(t *tensor.Tensor, call int, what string) *pipeValue {
	if t == nil || slices.Contains(pl.inputs, t) {
		return nil
	}
	v := pl.known[t]
	if v == nil {
		v = pl.birth(t)
	}
	if v.seen < 0 {
		v.seen, v.isOut, v.what, v.grad = call, true, what, t.NeedsGrad()
	}
	return v
}

// use notes that a call reads a value, and returns what is known of it.
func (pl *planner) use(t *tensor.Tensor, call int, what string) *pipeValue {
	if t == nil {
		return nil
	}
	if _, p := pl.c.StandsFor(t); p != nil {
		pl.read(p)
	}
	v := pl.value(t)
	if v == nil {
		return nil
	}
	if v.seen < 0 {
		v.seen, v.what, v.grad = call, what, t.NeedsGrad()
	}
	v.grad = v.grad || t.NeedsGrad() // which was not known when an operation between calls made it
	if pl.stage > v.born && !slices.Contains(v.uses, pl.stage) {
		v.uses = append(v.uses, pl.stage)
	}
	return v
}

// value returns what is known of a value that some stage makes, and nil for what each rank has: an
// input of the model, a parameter, a buffer, and where the tokens of the pass stand.
func (pl *planner) value(t *tensor.Tensor) *pipeValue {
	v := pl.known[t]
	if v == nil || slices.Contains(pl.inputs, t) {
		return nil
	}
	if value, p := pl.c.StandsFor(t); value != nil || p != nil {
		return nil
	}
	return v
}

// read notes that the present stage reads a parameter.
func (pl *planner) read(p *nn.Parameter) {
	if !slices.Contains(pl.plan.reads[p], pl.stage) {
		pl.plan.reads[p] = append(pl.plan.reads[p], pl.stage)
	}
}

// settle numbers the values that cross in the order in which they are seen, and forgets the
// others.
func (pl *planner) settle() {
	keep := func(vs []*pipeValue) {
		for i, v := range vs {
			switch {
			case v == nil:
			case len(v.uses) == 0:
				vs[i] = nil
			case v.index < 0:
				v.index = len(pl.plan.values)
				pl.plan.values = append(pl.plan.values, v)
			}
		}
	}
	for _, c := range pl.plan.calls {
		keep(c.in)
		keep(c.out)
	}
	keep(pl.plan.outputs)
}

// Computed implements tensor.Observer: it finds operations between calls that read values of
// another stage.
func (pl *planner) Computed(op tensor.Operation) {
	if pl.inside {
		return
	}
	for i, t := range op.Operands {
		if t == nil {
			continue
		}
		v := pl.value(t)
		if v == nil || v.born == pl.stage {
			continue
		}
		where := "before the first call"
		if n := len(pl.plan.calls); n > 0 {
			where = "after the call of " + pl.plan.calls[n-1].path
		}
		from := ""
		if v.what != "" {
			from = " (" + v.what + ")"
		}
		pl.c.Fail(stageError(pl.stage, "the operation %q between calls of modules, %s, reads as its operand %d a value of shape %v%s that stage %d has made: put the operation in a module that is called by Ctx.Call and has the value among its inputs, or begin the stage elsewhere",
			op.Name, where, i, t.Shape(), from, v.born))
	}
	if pl.known[op.Out] == nil {
		pl.birth(op.Out)
	}
}

// Recorded implements tensor.Observer.
func (*planner) Recorded(string, *tensor.Tensor, []*tensor.Tensor) {}

// Watched implements tensor.Observer: a constant of a value is the value, and another one is made
// here.
func (pl *planner) Watched(out, from *tensor.Tensor, _ tensor.Leaf) {
	if v := pl.known[from]; v != nil {
		pl.known[out] = v
	} else if !pl.inside {
		pl.birth(out)
	}
}

// Backward implements tensor.Observer.
func (*planner) Backward([]*tensor.Tensor) {}

// text is what the ranks compare of a plan.
func (plan *pipePlan) text() string {
	if plan.said != "" {
		return plan.said
	}
	var b strings.Builder
	for _, v := range plan.values {
		fmt.Fprintf(&b, "%s, %v%v, from stage %d to %v, with a gradient: %v\n", v.what, v.dtype, v.shape, v.born, v.uses, v.grad)
	}
	fmt.Fprintf(&b, "%d calls of modules\n", len(plan.calls))
	plan.said = b.String()
	return plan.said
}
