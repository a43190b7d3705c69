// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// Config says how [Parallelize] splits a model. The zero value is the default.
type Config struct {
	FSDP []FSDPOption // of the axis fsdp
	DDP  []DDPOption  // of a mesh without it
	Plan Plan         // how the axis tp cuts modules; nil is the model's own: see TensorPlanner
	TP   TPConfig
	// Context says how attention runs over the axis cp.
	Context ContextConfig
	// Pipeline says how the axis pp cuts the model into stages.
	Pipeline PipelineConfig
}

// Parallel is a model that is split over all axes of a mesh at once. It is a [Strategy].
// [Parallelize] makes it.
//
// Ranks that differ on the axes replicate, fsdp or ep take samples of their own. Ranks that
// differ only on pp, cp or tp take the same samples, and share the work on them.
//
// [nn.Parameter.Data] is what this rank holds of a parameter, for everybody but the model. An
// optimizer that is made after the Parallel keeps its state for that.
type Parallel struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have the same names
	// in the Parallel.
	Model any `name:""`

	mesh    *mesh.Mesh
	all     ranks                  // of the mesh
	pass    *mesh.Mesh             // without pp: the ranks that run a pass together
	engine  engine                 `name:"-"`
	parts   []splitter             `name:"-"` // outermost first
	lays    map[*nn.Parameter]*lay `name:"-"`
	split   *split                 `name:"-"`
	config  Config                 `name:"-"`
	stepped bool                   // a step has been done
	pipe    *pipeline              `name:"-"` // nil without an axis pp

	// Of parameters on tensor.Meta: what they are as a whole.
	origins map[*nn.Parameter]*tensor.Tensor `name:"-"`
	steps   map[*tensor.Tape]bool            `name:"-"` // the passes of Step
	shapes  *shapesOnly                      `name:"-"` // of a prediction; nil otherwise
	made    []io.Closer                      `name:"-"` // groups
}

// engine sums gradients: an [FSDP] or a [DDP].
type engine interface {
	Strategy
	forecaster
	reduce(ctx context.Context) error
}

// Parallelize prepares a model, an nn.Module or nn.ModuleN, for training on all ranks of a mesh
// with some of the axes pp, replicate, fsdp, ep, cp and tp, in this order; see [NewMesh]. Every
// rank calls it with the same model and the same configuration. A difference is an error on every
// rank, which names the first one. Parameters and buffers take rank 0's values.
//
// Make the optimizer afterwards.
//
// A model that does not fit one rank is built on [tensor.Meta]. [Parallel.Materialize] then makes
// what each rank holds, each on its rank.
func Parallelize(ctx context.Context, model any, m *mesh.Mesh, c Config) (*Parallel, error) {
	p := newParallel(model, m, c)
	if err := p.setUp(ctx); err != nil {
		return nil, fmt.Errorf("parallelize: %w", err)
	}
	return p, nil
}

func newParallel(model any, m *mesh.Mesh, c Config) *Parallel {
	return &Parallel{Model: model, mesh: m, config: c, origins: map[*nn.Parameter]*tensor.Tensor{}, steps: map[*tensor.Tape]bool{}}
}

func (p *Parallel) setUp(ctx context.Context) error {
	if p.mesh == nil {
		return errors.New("the mesh is nil: make one with NewMesh")
	}
	err := checkModule(p.Model)
	if err == nil {
		err = checkAxes(p.mesh)
	}
	if err != nil {
		return err
	}
	if err := verifySame(ctx, p.mesh.World(), p.Model, "parallelize", ""); err != nil {
		return err
	}
	var world ranks
	if world, err = p.passRanks(ctx); err != nil {
		return err
	}
	if err := p.layOut(ctx); err != nil {
		return err
	}
	for _, part := range p.parts {
		if err := part.join(ctx); err != nil {
			return fmt.Errorf("axis %s: %w", part.axis(), err)
		}
	}
	if p.all, err = newRanks(ctx, p.mesh.World(), worldAxis); err == nil {
		err = p.all.shareState(ctx, p.Model)
	}
	if err == nil {
		err = p.cut()
	}
	if err == nil {
		p.split, err = newSplit(ctx, p.pass, world, p.Model, p.lays)
	}
	if err == nil && p.pipe != nil {
		p.split.inside = p.pipe.root
	}
	if err == nil {
		err = p.makeEngine(ctx)
	}
	return p.agree(ctx, err)
}

// agree returns an error if any rank has one. Only the stages of a pipeline can differ.
func (p *Parallel) agree(ctx context.Context, err error) error {
	if p.pipe == nil || ctx.Err() != nil {
		return err
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	rank, texts, compareErr := firstDifference(ctx, p.mesh.World(), []byte(text))
	switch {
	case err != nil || compareErr == nil && rank < 0:
		return err
	case compareErr != nil:
		return fmt.Errorf("compare how the ranks split the model: %w", compareErr)
	}
	for i, of := range []int{0, rank} {
		if len(texts[i]) > 0 {
			return fmt.Errorf("rank %d: %s", of, texts[i])
		}
	}
	return nil
}

// passRanks makes the mesh of the ranks that run a pass together.
func (p *Parallel) passRanks(ctx context.Context) (world ranks, err error) {
	var axes []string
	for _, a := range p.mesh.Axes() {
		if a.Name != pipelineAxis {
			axes = append(axes, a.Name)
		}
	}
	if p.pass = p.mesh; len(axes) < len(p.mesh.Axes()) {
		if p.pass, err = p.mesh.Sub(axes...); err != nil {
			return world, err
		}
	}
	if len(axes) > 0 {
		flat, err := p.mesh.Flatten(ctx, worldAxis, axes...)
		if err == nil {
			p.made = append(p.made, flat)
		}
		return ranks{flat, worldAxis}, err
	}
	alone, err := p.mesh.World().NewGroup(ctx, []int{p.mesh.World().Rank()})
	if err != nil {
		return world, err
	}
	p.made = append(p.made, alone)
	return newRanks(ctx, alone, worldAxis)
}

// Close closes the groups that Parallelize has made, but not those of the mesh. Nothing runs the
// model afterwards.
func (p *Parallel) Close() error {
	var first error
	if p.split != nil {
		first = p.split.close()
	}
	for _, m := range p.made {
		if err := m.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// layOut has the parts say how each parameter lies. If the ranks do not come to the same, all
// return the same error.
func (p *Parallel) layOut(ctx context.Context) error {
	p.lays = plainLays(p.Model, p.pass)
	var text strings.Builder
	err := p.makeParts(ctx)
	for i := len(p.parts) - 1; i >= 0 && err == nil; i-- {
		if err = p.parts[i].lay(); err != nil {
			err = fmt.Errorf("axis %s: %w", p.parts[i].axis(), err)
		}
	}
	if err == nil {
		err = p.checkLays()
	}
	if err != nil {
		fmt.Fprintf(&text, "an error: %v\n", err)
	} else {
		fmt.Fprintf(&text, "%v\n", p.mesh.Axes())
		for _, part := range p.parts {
			fmt.Fprintf(&text, "%s\n", part.agreed())
		}
		for _, q := range nn.Parameters(p.Model) {
			l := p.lays[q]
			fmt.Fprintf(&text, "%s as %v, whose gradient is summed over %v\n", q.Name(), p.placements(l), l.owes)
		}
	}
	rank, texts, compareErr := firstDifference(ctx, p.mesh.World(), []byte(text.String()))
	switch {
	case compareErr != nil:
		return fmt.Errorf("compare how the ranks split the model: %w", compareErr)
	case rank < 0:
		return err
	}
	has := firstOther(texts)
	return fmt.Errorf("the ranks split the model differently: rank 0 has %s where rank %d has %s; give Parallelize the same configuration on every rank", has[0], rank, has[1])
}

// makeParts makes what splits the model over each axis beside replicate and fsdp: outermost
// first, pp, cp, ep, tp.
func (p *Parallel) makeParts(ctx context.Context) error {
	if p.has(pipelineAxis) {
		var err error
		if p.pipe, err = newPipeline(ctx, p, p.config.Pipeline); err != nil {
			return err
		}
		p.parts = append(p.parts, p.pipe)
	}
	if p.has(contextAxis) {
		cp, err := newContextParallel(p.Model, p.mesh, p.config.Context)
		if err != nil {
			return err
		}
		cp.inStep = func(c *nn.Ctx) bool { return p.inStep(c.Tape()) }
		p.parts = append(p.parts, cp)
	}
	if p.has(expertAxis) {
		ep, err := newExpertParallel(p)
		if err != nil {
			return err
		}
		p.parts = append(p.parts, ep)
	}
	if p.has(tensorAxis) {
		t, err := newTensorParallel(p.Model, p.mesh, p.config.Plan, p.config.TP, p.lays)
		if err != nil {
			return err
		}
		t.lossFollows = p.inStep
		p.parts = append(p.parts, t)
	}
	for _, a := range p.pass.Axes() {
		if a.Name != replicateAxis && a.Name != shardAxis && p.has(a.Name) {
			return fmt.Errorf("the mesh has an axis %s, over which nothing is split", a.Name)
		}
	}
	return nil
}

// has reports whether the mesh has an axis of two ranks or more that no part is for yet.
func (p *Parallel) has(axis string) bool {
	i, err := p.mesh.Index(axis)
	return err == nil && p.mesh.Shape()[i] > 1 && !slices.ContainsFunc(p.parts, func(s splitter) bool { return s.axis() == axis })
}

// makeEngine makes what sums the gradients.
func (p *Parallel) makeEngine(ctx context.Context) (err error) {
	if p.pass.Has(shardAxis) {
		p.engine, err = shardOver(ctx, p.Model, p.split, p.config.FSDP, nil)
	} else {
		p.engine, err = replicate(p.Model, p.split, p.config.DDP)
	}
	if err != nil {
		return err
	}
	for q, l := range p.lays {
		if isCut(p.Layout(q)) {
			q.SetWhole(l.shape)
		}
	}
	runtime.GC() // which frees the whole values: nothing refers to them
	return nil
}

// checkAxes fails for a mesh that Parallelize does not know.
func checkAxes(m *mesh.Mesh) error {
	var known []string
	for _, k := range knownAxes {
		known = append(known, k.name)
	}
	last := -1
	for _, a := range m.Axes() {
		i := slices.Index(known, a.Name)
		if i < 0 {
			return fmt.Errorf("the mesh has an axis %q: Parallelize knows the axes %s", a.Name, strings.Join(known, ", "))
		}
		if i < last {
			return fmt.Errorf("the axis %s of the mesh comes after %s: the order of the axes is %s", a.Name, known[last], strings.Join(known, ", "))
		}
		last = i
	}
	g := m.World()
	switch {
	case g == nil:
		return errors.New("the mesh has no group of all its ranks: make it with NewMesh or mesh.New")
	case g.Transport() == "gloo":
		return fmt.Errorf("group %q speaks PyTorch's wire, over which Parallelize does not run: use NewDDP with WithPyTorch, or a group made with dist.WithBackend(\"native\")", g.Name())
	}
	return nil
}

// Mesh returns the mesh that the model is split over.
func (p *Parallel) Mesh() *mesh.Mesh { return p.mesh }

// IsAway reports whether this rank has nothing of a parameter, because only other stages of the
// pipeline read it. Its Data is then on tensor.Meta.
func (p *Parallel) IsAway(q *nn.Parameter) bool { return p.lays[q].away }

// around adds the interceptors of the parts to a carrier.
func (p *Parallel) around(c *nn.Ctx) *nn.Ctx {
	if p.inStep(c.Tape()) {
		return c
	}
	c.ReadShards()
	for _, i := range p.parts {
		if i != splitter(p.pipe) {
			c = c.With(i)
		}
	}
	if p.pipe != nil {
		c = p.pipe.around(c)
	}
	if p.shapes != nil {
		c = c.With(p.shapes)
	}
	return c
}

// within returns the carrier of a microbatch, in which the parts step in on all that
// Microbatch.Loss calls, the loss included.
func (p *Parallel) within(c *nn.Ctx) *nn.Ctx {
	tape := c.Tape()
	in := p.around(c)
	p.steps[tape] = true
	tape.OnClose(func() { delete(p.steps, tape) })
	return in
}

// inStep reports whether a pass is one of Step, so that a part may leave the results of the
// model cut for the loss. In other passes they are whole.
func (p *Parallel) inStep(tape *tensor.Tape) bool { return p.steps[tape] }

// wantValues fails for a model that has not been made.
func (p *Parallel) wantValues(c *nn.Ctx) {
	if p.shapes != nil {
		return
	}
	for q := range p.origins {
		if !p.lays[q].away && q.Data().Device() == tensor.Meta {
			c.Fail(fmt.Errorf("parallelize: %s is on device %s, and has no values: call Parallel.Materialize before the first pass", q.Name(), tensor.Meta.Name()))
		}
	}
}

// Forward runs a model that is an nn.Module.
func (p *Parallel) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	p.wantValues(c)
	if p.pipe.isLooking() {
		return p.pipe.callModel(p.around(c), []*tensor.Tensor{x})[0]
	}
	return p.engine.Forward(p.around(c), x)
}

// ForwardN is Forward for an nn.ModuleN.
func (p *Parallel) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	p.wantValues(c)
	if p.pipe.isLooking() {
		return p.pipe.callModel(p.around(c), x)
	}
	return p.engine.ForwardN(p.around(c), x...)
}

// NoSync runs fn, whose passes add to the gradients without a reduction.
func (p *Parallel) NoSync(fn func() error) error { return p.engine.NoSync(fn) }

// reduce averages the gradients that passes under NoSync have left.
func (p *Parallel) reduce(ctx context.Context) error { return p.engine.reduce(ctx) }

// Step runs the passes of a step: one after the other, or as the schedule of the pipeline says.
// The loss is that of this rank's samples, without what modules have added by nn.Ctx.AddLoss.
func (p *Parallel) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	if !p.stepped {
		if err := p.sameNumber(ctx, len(microbatches)); err != nil {
			return nil, err
		}
	}
	run := func(ctx context.Context, microbatches []Microbatch) (*tensor.Tensor, error) {
		_, shards := p.engine.(*FSDP)
		return runPasses(ctx, p, microbatches, !shards, p.within)
	}
	for _, part := range p.parts {
		if s, ok := part.(stepper); ok {
			run = s.step
		}
	}
	loss, err = run(ctx, microbatches)
	for _, part := range p.parts {
		if s, ok := part.(lossSharer); ok && err == nil {
			loss, err = s.sumLoss(ctx, loss)
		}
	}
	if err == nil {
		p.stepped = true
		err = balanceExperts(ctx, p.Model, p.mesh.World())
	}
	return loss, err
}

// sameNumber returns the same error on all ranks if ranks that communicate within passes have
// other numbers of passes in a step. Those of replicas may differ, and stages have their own check.
func (p *Parallel) sameNumber(ctx context.Context, n int) error {
	mine := []int64{int64(n)}
	for i, a := range p.mesh.Axes() {
		if a.Name == pipelineAxis || a.Name == replicateAxis {
			mine = append(mine, int64(p.mesh.Coordinate()[i]))
		}
	}
	all, err := gather(ctx, p.mesh.World(), mine)
	if err != nil {
		return fmt.Errorf("parallel: compare the numbers of microbatches: %w", err)
	}
	for i, a := range all {
		first := slices.IndexFunc(all, func(b []int64) bool { return slices.Equal(a[1:], b[1:]) })
		if a[0] != all[first][0] {
			return fmt.Errorf("parallel: rank %d has %d microbatches in the first step, and rank %d has %d: give ranks that differ on fsdp, ep, cp or tp the same number", i, a[0], first, all[first][0])
		}
	}
	return nil
}

// ClipGradNorm adds up the squares of this rank's part of each gradient, and sums them over all
// ranks. A rank leaves out what others have as well, so that each element counts once.
func (p *Parallel) ClipGradNorm(ctx context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	var gs []*tensor.Tensor
	for _, q := range params {
		g := q.Grad()
		if rows := q.RowGrad(); rows != nil {
			g = rows.Rows
		}
		if g != nil && g.NumElems() > 0 && p.counts(q) {
			gs = append(gs, g)
		}
	}
	dev := tensor.CPU()
	if len(params) > 0 {
		dev = deviceOf(params)
	}
	squares := tensor.New(dev, tensor.Float64)
	if len(gs) > 0 {
		squares = tensor.SumSquaresAll(gs...)
	}
	squares.SetName("the squares of the gradients")
	if err := arrived(ctx, mesh.AllReduceAsync(ctx, worldAxis, p.all.value(squares, mesh.Partial(dist.Sum)))); err != nil {
		return nil, nil, fmt.Errorf("parallelize: sum the squares of the gradients: %w", err)
	}
	norm = squares.Sqrt()
	return norm, optim.ClipScale(norm, maxNorm), nil
}

// deviceOf returns where the parameters are that this rank has.
func deviceOf(params []*nn.Parameter) tensor.Device {
	for _, q := range params {
		if d := q.Data().Device(); d != tensor.Meta {
			return d
		}
	}
	return tensor.CPU()
}

// SyncBuffers gives every rank the buffers of the first rank that runs the modules which have them.
func (p *Parallel) SyncBuffers(ctx context.Context) error {
	if err := p.engine.SyncBuffers(ctx); err != nil || p.pipe == nil {
		return err
	}
	return p.pipe.shareBuffers(ctx)
}

// StateDict returns what this rank holds of the model's state, by name. What is away is there
// too, on tensor.Meta.
func (p *Parallel) StateDict() nn.NamedTensors { return nn.StateDict(p.Model) }

// Unused returns the names of the parameters that no rank has reached in the last reduction.
func (p *Parallel) Unused() []string {
	u, _ := p.engine.(interface{ Unused() []string })
	return u.Unused()
}

// String says what is split over what: "fsdp 2 (samples and parameters, in 3 units) × tp 2 (heads)".
func (p *Parallel) String() string {
	var axes []string
	for _, a := range p.mesh.Axes() {
		shares := "samples" // replicate
		for _, part := range p.parts {
			if part.axis() == a.Name {
				shares = part.String()
			}
		}
		if f, ok := p.engine.(*FSDP); ok && a.Name == shardAxis {
			shares = fmt.Sprintf("samples and parameters, in %d units", len(f.units))
		}
		axes = append(axes, fmt.Sprintf("%s %d (%s)", a.Name, a.Size, shares))
	}
	return strings.Join(axes, " × ")
}
