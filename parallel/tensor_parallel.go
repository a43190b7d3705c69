// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// TPConfig says how tensor parallelism runs. The zero value is the usual.
type TPConfig struct {
	// WholeSequence leaves sequences whole between the modules that are cut, as if the plan had no
	// rules with the style sequence. Every rank then computes norms and dropout of all tokens.
	WholeSequence bool
	// WholeLogits gathers the logits in training too. It is for losses that are not computed by
	// nn.CrossEntropyLoss, called by nn.Ctx.CallN.
	WholeLogits bool
	// KeepGathered keeps the whole sequences that layers with the style column take, for the backward
	// pass. Otherwise their memory is given up, and they are gathered again: a rank's activations
	// then fall with the number of ranks, for a fifth more bytes to send.
	KeepGathered bool
	// Pieces, if it is 2 or more, is how many pieces of a rank's tokens are gathered, computed and
	// summed while the next or the last one travels. It pays where messages take about as long as
	// products. Whole sequences are then kept, as with KeepGathered.
	Pieces int
}

// TensorPlanner is a model that knows how it can be cut.
type TensorPlanner interface {
	// TensorPlan returns a plan as [ParsePlan] reads it.
	TensorPlan() string
}

// tensorParallel splits the modules of a model over the axis tp, by a [Plan].
type tensorParallel struct {
	model      any
	mesh       *mesh.Mesh // of the axis tp alone
	size, rank int
	plan       Plan
	config     TPConfig
	sequences  bool // ranks share sequences between the modules that are cut
	lays       map[*nn.Parameter]*lay

	roles  map[any]*role
	parts  map[*nn.Parameter]bool // biases that count on one rank alone: they are added to a part of a sum
	tables map[*nn.Parameter]int  // rows of embeddings that are cut along their rows
	widths []int                  // sizes of dims that are cut

	// Whether the loss of a pass is computed where this part steps in.
	lossFollows func(tape *tensor.Tape) bool

	passes map[*tensor.Tape]*tensorPass
	sent   traffic
	alike  bool // the ranks were found to take the same samples
}

// role is what a plan has in mind for a module.
type role struct {
	path   string
	module any
	rule   *Rule   // its style; nil for none
	inputs []*Rule // and what is spread anew
	gives  []*Rule
	logits *Rule
	weight *nn.Parameter
	bias   *nn.Parameter
	// How many channels the ranks have together of a result that is cut.
	channels int
}

// newTensorParallel resolves a plan for a model. It does not communicate.
func newTensorParallel(model any, m *mesh.Mesh, plan Plan, config TPConfig, lays map[*nn.Parameter]*lay) (*tensorParallel, error) {
	sub, err := m.Sub(tensorAxis)
	if err != nil {
		return nil, fmt.Errorf("tensor parallel: %w", err)
	}
	if plan == nil {
		if plan, err = planOf(model); err != nil {
			return nil, err
		}
	}
	t := &tensorParallel{
		model: model, mesh: sub, size: sub.Size(), rank: sub.Rank(), plan: plan, config: config, lays: lays,
		roles: map[any]*role{}, parts: map[*nn.Parameter]bool{}, tables: map[*nn.Parameter]int{},
		lossFollows: func(*tensor.Tape) bool { return false },
		passes:      map[*tensor.Tape]*tensorPass{}, sent: traffic{},
	}
	t.sequences = !config.WholeSequence && slices.ContainsFunc(plan, func(r Rule) bool {
		return r.Style == styleSequence || r.From == kindSequence || r.To == kindSequence
	})
	return t, nil
}

// planOf returns the plan that a model has of its own.
func planOf(model any) (Plan, error) {
	planner, ok := base(model).(TensorPlanner)
	if !ok {
		return nil, fmt.Errorf("tensor parallel: a %T has no plan of its own: give one in Config.Plan, such as \"layers.*.up: column\" and \"layers.*.down: row\", a rule a line (parallel.ParsePlan)", base(model))
	}
	plan, err := ParsePlan(planner.TensorPlan())
	if err != nil {
		return nil, fmt.Errorf("tensor parallel: the plan that %T.TensorPlan returns: %w", base(model), err)
	}
	return plan, nil
}

// base returns the model that adapters are beside.
func base(model any) any {
	if l, ok := model.(*nn.LoRA); ok {
		return l.Base
	}
	return model
}

func (t *tensorParallel) axis() string { return tensorAxis }

// agreed is the plan and the settings.
func (t *tensorParallel) agreed() string {
	return fmt.Sprintf("tensor parallel: %+v\n%s", t.config, t.plan)
}

func (t *tensorParallel) sentBytes() int64 { return t.sent.total() }

func (t *tensorParallel) join(context.Context) error { return nil }

// String says what the ranks share.
func (t *tensorParallel) String() string {
	styles := map[string]bool{}
	for _, r := range t.roles {
		if r.rule != nil {
			styles[r.rule.Style] = true
		}
		if r.rule != nil && r.rule.In > 0 {
			styles["heads"] = true
		}
		if r.logits != nil {
			styles[styleLogits] = true
		}
	}
	var what []string
	for _, s := range []struct{ style, name string }{
		{styleHeads, "heads"}, {styleColumn, "layers"}, {styleExperts, "experts"}, {styleVocabulary, "vocabulary"}, {styleWidth, "width of embeddings"}, {styleLogits, "loss"},
	} {
		if styles[s.style] && !(s.style == styleLogits && t.config.WholeLogits) {
			what = append(what, s.name)
		}
	}
	if t.sequences {
		what = append(what, "sequence between layers")
	}
	if len(what) == 0 {
		return "parameters"
	}
	return strings.Join(what, ", ")
}

// usual is how values lie between the modules that are cut.
func (t *tensorParallel) usual() string {
	if t.sequences {
		return kindSequence
	}
	return kindReplicate
}

// now returns the kind of a value in a pass: only training passes share sequences.
func (t *tensorParallel) now(c *nn.Ctx, kind string) string {
	if kind == kindSequence && (!t.sequences || !c.Training()) {
		return kindReplicate
	}
	return kind
}

func or(kind, usual string) string {
	if kind == "" {
		return usual
	}
	return kind
}

// InterceptCall takes what a module takes and gives over the boundaries of its role.
func (t *tensorParallel) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if module == t.model {
		t.enter(c, x)
	}
	r := t.roles[module]
	if r == nil {
		switch m := module.(type) {
		case *nn.CrossEntropyLoss:
			return t.crossEntropy(c, m, x, next)
		case *nn.Dropout:
			t.wantRule(c, m.P, x, styleSequence+" or "+styleCut)
		case *nn.DotProductAttention:
			if t.passOf(c.Tape()).inHeads == 0 {
				t.wantRule(c, m.Dropout, x, styleHeads)
			}
		}
		return next(c, x)
	}
	x = slices.Clone(x)
	for _, rule := range r.inputs {
		if rule.Index >= len(x) {
			c.Fail(rule.wrong("%s (%T) was called with %d inputs, and they count from 0", r.path, module, len(x)))
		}
		x[rule.Index] = t.cross(c, boundary{who: rule.Style + " of " + r.path, from: or(rule.From, t.usual()), to: rule.To}, x[rule.Index])
	}
	y := t.call(c, r, x, next)
	for i, rule := range r.gives {
		if i == 0 {
			y = slices.Clone(y)
		}
		if rule.Index >= len(y) {
			c.Fail(rule.wrong("%s (%T) has given %d outputs, and they count from 0", r.path, module, len(y)))
		}
		y[rule.Index] = t.cross(c, boundary{who: rule.Style + " of " + r.path, from: or(rule.From, t.usual()), to: rule.To}, y[rule.Index])
	}
	if r.logits != nil {
		y = slices.Clone(y)
		y[0] = t.finishLogits(c, r, y[0])
	}
	return y
}

// enter begins a call of the model: its inputs say how long sequences are.
func (t *tensorParallel) enter(c *nn.Ctx, x []*tensor.Tensor) {
	if err := t.sameSamples(c, x); err != nil {
		c.Fail(err)
	}
	if t.now(c, kindSequence) != kindSequence {
		return
	}
	pass := t.passOf(c.Tape())
	for _, in := range x {
		switch {
		case in == nil || in.NumDims() == 0 || in.DType() == tensor.Bool:
		case !in.DType().IsFloat():
			pass.note(in.Dim(-1))
		case in.NumDims() > 1:
			pass.note(in.Dim(-2))
		}
	}
}

// sameSamples compares the inputs of the first training pass with those of the other ranks.
func (t *tensorParallel) sameSamples(c *nn.Ctx, x []*tensor.Tensor) error {
	meta := func(in *tensor.Tensor) bool { return in != nil && in.Device() == tensor.Meta }
	if t.alike || !c.Training() || slices.ContainsFunc(x, meta) {
		return nil
	}
	if err := compareSamples(c, t.mesh.World(), x); err != nil {
		return fmt.Errorf("tensor parallel: axis %s: %w", tensorAxis, err)
	}
	t.alike = true
	return nil
}

// call runs a module in its style.
func (t *tensorParallel) call(c *nn.Ctx, r *role, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if r.rule == nil {
		return next(c, x)
	}
	rule := r.rule
	who := rule.Style + " parallel " + r.path
	out := func(y []*tensor.Tensor, from, to string) []*tensor.Tensor {
		y = slices.Clone(y)
		if from == kindCut {
			t.passOf(c.Tape()).hasMade(y[0], r.channels)
		}
		y[0] = t.cross(c, boundary{who: who, from: from, to: to}, y[0])
		return y
	}
	switch rule.Style {
	case styleColumn:
		b := boundary{who, or(rule.From, t.usual()), kindCopy, true}
		if p := t.piecesOfColumn(c, b, x); p != nil {
			y := p.column(c, b, x[0], func(x *tensor.Tensor) *tensor.Tensor { return next(c, []*tensor.Tensor{x})[0] })
			return out([]*tensor.Tensor{y}, kindCut, or(rule.To, kindCut))
		}
		x[0] = t.cross(c, b, x[0])
		y := slices.Clone(next(c, x))
		y[0] = t.before(t.passOf(c.Tape()), x[0], y[0])
		return out(y, kindCut, or(rule.To, kindCut))
	case styleRow:
		x[0] = t.cross(c, boundary{who: who, from: or(rule.From, kindCut), to: kindCut}, x[0])
		if p := t.piecesOfRow(c, boundary{who: who, from: kindPartial, to: or(rule.To, t.usual())}, x); p != nil {
			return []*tensor.Tensor{p.row(c, boundary{who: who, from: kindPartial, to: kindSequence}, x[0], func(x *tensor.Tensor) *tensor.Tensor { return next(c, []*tensor.Tensor{x})[0] })}
		}
		part := next(c, x)
		y := out(part, kindPartial, or(rule.To, t.usual()))
		if c.Tape().Recording() && y[0] != part[0] {
			part[0].Untracked().Release() // which no backward pass reads
		}
		return y
	case styleExperts: // of x, the weights and the choices
		for i := range x[:min(2, len(x))] {
			x[i] = t.cross(c, boundary{who: who, from: or(rule.From, kindReplicate), to: kindCopy}, x[i])
		}
		return out(next(c, x), kindPartial, or(rule.To, kindReplicate))
	case styleVocabulary:
		return out(t.lookUp(c, r, x, next), kindPartial, or(rule.To, t.usual()))
	case styleWidth:
		return out(next(c, x), kindCut, or(rule.To, t.usual()))
	case styleSequence:
		if !x[0].DType().IsFloat() {
			x[0] = t.cross(c, boundary{who: who, from: kindReplicate, to: kindSequence}, x[0])
			break
		}
		c = t.within(c, boundary{who: who, from: t.now(c, kindSequence)}, x[0])
	case styleCut:
		c = t.within(c, boundary{who: who, from: kindCut}, x[0])
	case styleHeads:
		return t.inHeads(c, r, x, next)
	}
	return next(c, x)
}

// lookUp looks up the rows that this rank has of a table. Others come out as zeros.
func (t *tensorParallel) lookUp(c *nn.Ctx, r *role, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	ids := x[0]
	first, n := t.part(t.tables[r.weight])
	if ids.DType() != tensor.Int64 {
		return next(c, x) // which says so
	}
	here := ids.GeScalar(float64(first)).LogicalAnd(ids.LtScalar(float64(first + n)))
	away := ids.GeScalar(0).LogicalAnd(ids.LtScalar(float64(t.tables[r.weight]))).LogicalAnd(here.LogicalNot())
	// An id that is no row of the whole table stays wrong, and is named so.
	at := tensor.Where(away, ids.MulScalar(0), ids.SubScalar(float64(first)))
	table := &tableOf{t: t, r: r}
	y := slices.Clone(next(c.With(table), []*tensor.Tensor{at}))
	table.restore()
	y[0] = y[0].Mul(here.Unsqueeze(-1).To(y[0].DType()))
	return y
}

// tableOf says, within the look-up in a table, that the rows of other ranks count as zeros.
type tableOf struct {
	t     *tensorParallel
	r     *role
	table *tensor.Tensor // that has another type within the look-up
	note  *tensor.Note   // which it has outside
}

func (o *tableOf) InterceptCall(c *nn.Ctx, _ any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	return next(c, x)
}

// InterceptParam changes the type of the table: with zeros for the rows of other ranks it is a
// part of a sum. The table itself gets the type. A value recorded in its place would take the
// gradient, and the leaf would add it up in another order than in passes that are not checked.
func (o *tableOf) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	w := next(c)
	if p != o.r.weight || o.table != nil || sharding.Of(c.Tape()) == nil {
		return w
	}
	o.table, o.note = w, w.Note()
	o.t.giveAs(c, "vocabulary parallel "+o.r.path, w, w, mesh.Shard(0), mesh.Partial(dist.Sum), mesh.Replicate(), mesh.Shard(0))
	return w
}

// restore gives the table the type that it has outside the look-up: a tied head reads it too.
func (o *tableOf) restore() {
	if o.table != nil {
		o.table.SetNote(o.note)
	}
}

// handOn gives a gradient on.
func handOn(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{g}, nil
}

// within says, for the dropout of a module, which part of a whole its input is.
func (t *tensorParallel) within(c *nn.Ctx, b boundary, x *tensor.Tensor) *nn.Ctx {
	if !c.Training() || b.from == kindReplicate || x == nil || x.NumDims() < 2 {
		return c
	}
	pass, n := t.passOf(c.Tape()), x.NumDims()
	dim, size := n-2, 0
	if b.from == kindCut {
		dim, size = n-1, pass.channelsOf(c, b, x)
	} else {
		size = pass.among(c, b, "tokens", x.Dim(dim), pass.tokens)
	}
	first, length := t.part(size)
	return c.WithCut(tensor.Cut{Dim: dim, Size: size, Runs: [][2]int{{first, first + length}}})
}

// wantRule fails, in the pass that is checked, for dropout of what ranks share that no rule
// knows of: the ranks would draw the same numbers for different elements.
func (t *tensorParallel) wantRule(c *nn.Ctx, share float64, x []*tensor.Tensor, style string) {
	pass := sharding.Of(c.Tape())
	if share == 0 || pass == nil || !c.Training() || len(x) == 0 || x[0] == nil {
		return
	}
	for i, at := range pass.TypeOf(x[0]) {
		if _, cut := at.IsShard(); cut && pass.Axes()[i].Name == tensorAxis {
			c.Fail(fmt.Errorf("tensor parallel: dropout of a value that is %v over axis tp would not be one rank's: give the module the style %s in the plan", at, style))
		}
	}
}

// inHeads runs attention in this rank's heads.
func (t *tensorParallel) inHeads(c *nn.Ctx, r *role, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if _, ok := r.module.(*nn.MultiheadAttention); !ok {
		return (&someHeads{t}).InterceptCall(c, r.module, x, next)
	}
	who := "heads parallel " + r.path
	for i := range x {
		if len(x)%2 == 1 || i < len(x)-1 { // the last of an even number is a mask
			x[i] = t.cross(c, boundary{who: who, from: t.usual(), to: kindCopy}, x[i])
		}
	}
	pass := t.passOf(c.Tape())
	pass.inHeads++
	y := next(c.With(&someHeads{t}), x)
	pass.inHeads--
	return y
}

// someHeads says, for the dropout of attention, which heads of a whole this rank has.
type someHeads struct{ t *tensorParallel }

func (h *someHeads) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	m, ok := module.(*nn.DotProductAttention)
	if !ok || len(x) == 0 || x[0] == nil {
		return next(c, x)
	}
	p := c.AttentionPart()
	n := p.Heads
	switch {
	case n > 0:
	case x[0].NumDims() == 4:
		n = x[0].Dim(2)
	case m.HeadDim > 0:
		n = x[0].Dim(-1) / (3 * m.HeadDim)
	}
	p.Heads, p.Head = n*h.t.size, p.Head+h.t.rank*n
	return next(c.WithAttentionPart(p), x)
}

func (h *someHeads) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// InterceptParam has a bias that is added to a part of a sum count once. A table that a model reads
// itself gives logits: the rows are their channels.
func (t *tensorParallel) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	b := next(c)
	if rows := t.tables[p]; rows > 0 {
		t.passOf(c.Tape()).newest = rows
	}
	if !t.parts[p] {
		return b
	}
	y := b.Detach()
	if t.rank > 0 {
		zeros := tensor.New(b.Device(), b.DType(), b.Shape()...)
		y = c.Tape().Adopt(zeros)
	}
	t.giveAs(c, "the bias "+p.Name(), b, y, mesh.Replicate(), mesh.Partial(dist.Sum), mesh.Replicate(), mesh.Replicate())
	return tensor.Record("tensor parallel", y, []*tensor.Tensor{b}, nil, handOn)
}

// finishLogits hands on logits of this rank's classes where the loss can be computed of them, and
// else gathers them.
func (t *tensorParallel) finishLogits(c *nn.Ctx, r *role, y *tensor.Tensor) *tensor.Tensor {
	if c.Tape().Recording() && !t.config.WholeLogits && t.lossFollows(c.Tape()) {
		pass := t.passOf(c.Tape())
		pass.classes = pass.channelsOf(c, boundary{who: "logits of " + r.path}, y)
		return y
	}
	return t.cross(c, boundary{who: "logits of " + r.path, from: kindCut, to: kindReplicate}, y)
}
