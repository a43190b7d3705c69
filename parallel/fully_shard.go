// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// FSDP is fully sharded data parallelism (Zhao et al. 2023, "PyTorch FSDP"): each rank holds a
// shard of each parameter, of its gradient and of its optimizer state, and computes a share of
// the batch. It is a [Strategy]. [FullyShard] makes it.
//
// The parameters are divided into units by a [Policy]. The full values of a unit exist only
// while its module runs: they are gathered before its call in the forward pass, given up after
// it, gathered again in the backward pass, and given up when it is over. Then the gradients of
// the unit are summed, and each rank keeps its shard of the sums. While a unit computes, the
// next one is on its way: there are at most two gathers under way, and a rank holds the full
// values of two units beside those of the model itself, which stay for the whole pass.
//
// [nn.Parameter.Data] is the shard, for everybody but the model. An optimizer that is made
// after the FSDP keeps its state for the shard, and does not know of it.
//
// With an axis replicate, the ranks of the axis fsdp share one copy of the model among
// themselves, and their gradients are then summed over the copies (hybrid sharding).
//
// As with [DDP], the backward pass starts with 1/ranks, gradients that nobody has dropped are
// added to, and a parameter that no rank has reached keeps the gradient that it has. Each rank
// must run the same units in the same order. It may leave out parameters inside of a unit, and
// need not come to a unit in its backward pass.
//
// The backward pass gathers a unit where it comes to a result of the unit's module. A loss that
// needs values of the inside of a unit, which the module has kept on the side, and no result of
// it nor of a later unit, fails: the parameters are away. All units of what is recomputed
// ([nn.Recompute]) are gathered together. A hook of [nn.Parameter.OnGradReady] runs at the end
// of the pass, with this rank's shard of the average, and inside NoSync it does not run.
type FSDP struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have the same names
	// in the FSDP.
	Model any `name:""`

	mesh   *mesh.Mesh
	split  *split      `name:"-"`
	shards *dist.Group // of the axis fsdp
	world  ranks       // all of the mesh
	device tensor.Device

	units      []*shardUnit                  `name:"-"` // the model itself is the first
	unitOf     map[any]*shardUnit            `name:"-"`
	params     []*shardParam                 `name:"-"` // in the order of the model
	paramOf    map[*nn.Parameter]*shardParam `name:"-"`
	sparse     []*nn.Parameter               `name:"-"` // which stay whole
	rows       []*rowSync                    `name:"-"` // their gradients
	numTrained int
	shardDim   func(name string, shape []int) int
	shared     []*bufferSync `name:"-"`
	keep       bool          // full values stay until the backward pass is over
	near       *mesh.Mesh    // has the neighbours with which this rank keeps parts; nil for none

	sync     bool // false inside of NoSync
	passes   []*shardPass
	outlines map[bool][]outline // of the last pass with a record, and without
	arenas   arenas
	unused   []string
	failed   bool // a backward pass has not come to its end
	grace    time.Duration
	late     stragglerWatch
	types    typeCheck
	plan     *shardPlan // nil but for a prediction
}

// FSDPOption is an option of [FullyShard].
type FSDPOption func(*fsdpOptions)

type fsdpOptions struct {
	policy         Policy
	reshard        Reshard
	shardDim       func(name string, shape []int) int
	gather, reduce tensor.DType // of matrices; 0 is their own
}

// WithPolicy divides the model into units by p. The default is [ByBlock].
func WithPolicy(p Policy) FSDPOption { return func(o *fsdpOptions) { o.policy = p } }

// Reshard says when the full values of a unit are given up: Always, Never, or [WithinGroupsOf].
type Reshard int

const (
	// Always gives them up after the call in the forward pass, and gathers them again in the
	// backward pass. It is the default, and takes the least memory.
	Always Reshard = iota
	// Never keeps them until the backward pass is over, which saves a gather.
	Never
)

// WithReshard chooses when the full values of units are given up, and whether a part is kept.
// Those of the model itself stay for the whole pass in any case.
func WithReshard(r Reshard) FSDPOption { return func(o *fsdpOptions) { o.reshard = r } }

// WithShardDim cuts parameters along the dim that dim returns for their name and shape. The
// default is 0. Along another dim the number of ranks must divide the parameter.
func WithShardDim(dim func(name string, shape []int) int) FSDPOption {
	return func(o *fsdpOptions) { o.shardDim = dim }
}

// WithMixedPrecision has the full values of float32 parameters with two dims or more gathered in
// the dtype gather, and their gradients computed and reduced in the dtype reduce. Each is
// tensor.BFloat16 or tensor.Float32, and 0 is float32 for gather, and for reduce what gather is.
// Shards, and the gradients that the optimizer sees, stay float32. Vectors, such as the weights
// of norms, are gathered and reduced in float32. Use it with [nn.WithAutocast], which computes
// in bfloat16 anyway. Gathers then take half the bytes.
func WithMixedPrecision(gather, reduce tensor.DType) FSDPOption {
	return func(o *fsdpOptions) { o.gather, o.reduce = gather, reduce }
}

// FullyShard prepares a model, an nn.Module or nn.ModuleN, for training with sharded parameters
// on all ranks of a mesh. The mesh has an axis "fsdp", and may have an axis "replicate". Every
// rank calls it with the same model. A difference in the parameters is an error on every rank,
// which names the first one ([*MismatchError]), and so is a difference in the units. Parameters
// and buffers take rank 0's values.
//
// Make the optimizer afterwards. Parameters that are sparse stay whole on every rank.
//
// A model that does not fit one rank is built on [tensor.Meta]. [FSDP.Materialize] then makes the
// shards, each on its rank.
func FullyShard(ctx context.Context, model any, m *mesh.Mesh, opts ...FSDPOption) (*FSDP, error) {
	err := checkModule(model)
	switch {
	case err != nil:
	case m == nil:
		err = errors.New("the mesh is nil: make one with mesh.New, with an axis \"fsdp\"")
	default:
		err = checkShardMesh(m)
	}
	var world ranks
	if err == nil {
		world, err = newRanks(ctx, m.World(), worldAxis)
	}
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	if err := verifySame(ctx, m.World(), model, "fsdp", ""); err != nil {
		return nil, err
	}
	s, err := newSplit(ctx, m, world, model, plainLays(model, m))
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	share := func(ctx context.Context) error { return world.shareState(ctx, model) }
	return shardOver(ctx, model, s, opts, share)
}

// shardOver shards what each rank has of a model. share, if it is not nil, gives all ranks the
// same values, once it is known that they can be sharded.
func shardOver(ctx context.Context, model any, s *split, opts []FSDPOption, share func(ctx context.Context) error) (*FSDP, error) {
	o := fsdpOptions{policy: ByBlock(), shardDim: func(string, []int) int { return 0 }}
	for _, opt := range opts {
		opt(&o)
	}
	f := &FSDP{
		Model: model, mesh: s.mesh, shardDim: o.shardDim, split: s, world: s.world, device: tensor.CPU(), keep: o.reshard == Never, sync: true, grace: abandonTime,
		unitOf: map[any]*shardUnit{}, paramOf: map[*nn.Parameter]*shardParam{}, outlines: map[bool][]outline{},
		late: watchStragglers(s.world.group(), &ddpOptions{}),
	}
	var err error
	if f.shards, err = f.mesh.Group(shardAxis); err == nil {
		err = f.divide(ctx, model, &o)
	}
	if err == nil {
		err = f.formGroups(ctx, o.reshard)
	}
	if err == nil && share != nil {
		err = share(ctx)
	}
	if err == nil {
		err = f.distribute()
	}
	if err != nil {
		return nil, fmt.Errorf("fsdp: %w", err)
	}
	return f, nil
}

// distribute gives each rank its shards of the values that all have.
func (f *FSDP) distribute() error {
	if f.world.group().Size() > 1 {
		f.shared = newBufferSyncs(f.Model)
	}
	for _, u := range f.units {
		if err := u.shard(); err != nil {
			return err
		}
	}
	runtime.GC() // which frees the full values: nothing refers to them
	return nil
}

// checkShardMesh fails for a mesh that FullyShard does not know.
func checkShardMesh(m *mesh.Mesh) error {
	for _, a := range m.Axes() {
		switch a.Name {
		case shardAxis:
		case replicateAxis:
		default:
			return fmt.Errorf("the mesh has an axis %q: FullyShard shards over an axis %q and replicates over an axis %q, and knows no others: Parallelize does", a.Name, shardAxis, replicateAxis)
		}
	}
	if _, err := m.Group(shardAxis); err != nil {
		return err
	}
	if g := m.World(); g.Transport() == "gloo" {
		return fmt.Errorf("group %q speaks PyTorch's wire, over which FullyShard does not run: use NewDDP with WithPyTorch, or a group made with dist.WithBackend(\"native\")", g.Name())
	}
	return nil
}

// divide makes the units. If ranks have come to different ones, or a rank to none, all return
// the same error.
func (f *FSDP) divide(ctx context.Context, model any, o *fsdpOptions) error {
	left := func(p *nn.Parameter) bool { return p.Sparse && !p.Frozen || f.split.lays[p].away }
	var units []*assignment
	err := errors.New("WithPolicy or WithShardDim got nil: leave the option out for the default")
	if o.policy != nil && o.shardDim != nil {
		units, err = assign(model, o.policy, left)
	}
	if err == nil {
		err = f.checkReshard(o.reshard)
	}
	if err == nil {
		err = f.makeUnits(units, o)
	}
	var text strings.Builder
	if err != nil {
		fmt.Fprintf(&text, "an error: %v\n", err)
	} else {
		fmt.Fprintf(&text, "%v, full values given up: %v\n", f.mesh.Axes(), o.reshard)
		for _, s := range f.params {
			fmt.Fprintf(&text, "%s in the unit %q, cut along dim %d, gathered in %v and reduced in %v\n", s.name, s.unit.path, s.dim, s.fullDType, s.gradDType)
		}
	}
	rank, texts, compareErr := firstDifference(ctx, f.world.group(), []byte(text.String()))
	switch {
	case compareErr != nil:
		return fmt.Errorf("compare the units of the ranks: %w", compareErr)
	case rank < 0:
		return err
	}
	has := firstOther(texts)
	return fmt.Errorf("the ranks divide the model differently: rank 0 has %s where rank %d has %s; give FullyShard the same policy and options on every rank", has[0], rank, has[1])
}

func (f *FSDP) makeUnits(assigned []*assignment, o *fsdpOptions) error {
	for _, a := range assigned {
		u := &shardUnit{f: f, path: a.path, module: a.module}
		f.units = append(f.units, u)
		f.unitOf[a.module] = u
		for _, p := range a.params {
			s, err := f.newParam(u, p, o)
			if err != nil {
				return err
			}
			u.params = append(u.params, s)
			f.paramOf[p] = s
		}
	}
	for _, p := range nn.Parameters(f.Model) {
		s := f.paramOf[p]
		switch {
		case f.split.lays[p].away:
			continue
		case s == nil:
			f.sparse = append(f.sparse, p)
			if len(f.params) == 0 {
				f.device = p.Data().Device()
			}
			continue
		case !s.frozen && !s.dtype.IsFloat():
			return fmt.Errorf("%s is %v, which has no gradient: freeze it, or make it a buffer", s.name, s.dtype)
		case !s.frozen:
			s.index = f.numTrained
			f.numTrained++
		}
		if len(f.params) > 0 && s.device != f.device {
			return fmt.Errorf("%s is on device %s, and %s on %s: build the whole model on one device", s.name, s.device.Name(), f.params[0].name, f.device.Name())
		}
		f.params = append(f.params, s)
		f.device = s.device
	}
	f.rows = f.split.rows("fsdp", f.sparse)
	return nil
}

// newParam says how a parameter will be cut.
func (f *FSDP) newParam(u *shardUnit, p *nn.Parameter, o *fsdpOptions) (*shardParam, error) {
	s := &shardParam{
		param: p, name: p.Name(), unit: u, shape: p.Data().Shape(), dtype: p.Data().DType(), frozen: p.Frozen, device: p.Data().Device(),
	}
	s.mesh, s.sumAxis = f.split.besideFSDP(p)
	s.fullDType, s.gradDType = s.dtype, s.dtype
	for _, d := range []tensor.DType{o.gather, o.reduce} {
		if d != 0 && d != tensor.Float32 && d != tensor.BFloat16 {
			return nil, fmt.Errorf("mixed precision in %v: parameters are gathered and reduced in bfloat16 or float32", d)
		}
	}
	if s.dtype == tensor.Float32 && len(s.shape) > 1 {
		s.fullDType = cmp.Or(o.gather, s.dtype)
		s.gradDType = cmp.Or(o.reduce, s.fullDType)
	}
	n := f.shards.Size()
	if len(s.shape) == 0 {
		return nil, fmt.Errorf("%s has no dims, and cannot be cut: give it the shape [1]", s.name)
	}
	s.dim = f.dimOf(p)
	if s.dim >= 0 && s.dim < len(s.shape) {
		s.numPieces = f.split.lays[p].pieces(s.dim)
	}
	if s.numPieces > 1 { // each piece is cut
		if rows := f.unevenPiece(f.split.lays[p], s.dim); rows > 0 {
			return nil, fmt.Errorf("other axes cut %s along dim %d within %d pieces (packed), and the %d ranks of axis %s cannot share the %d rows that a rank has of a piece, nor another dim: %d %% %d = %d: choose an %[5]s that divides %[6]d",
				s.name, s.dim, s.numPieces, n, shardAxis, rows, rows, n, rows%n)
		}
		rows := s.shape[s.dim] / s.numPieces
		s.shape = slices.Replace(s.shape, s.dim, s.dim+1, s.numPieces, rows)
		s.dim++
	}
	switch {
	case s.dim < 0 || s.dim >= len(s.shape):
		return nil, fmt.Errorf("%s of shape %v cannot be cut along dim %d: WithShardDim chooses a dim from 0 to %d", s.name, s.shape, s.dim, len(s.shape)-1)
	case s.dim != 0 && s.shape[s.dim]%n != 0:
		return nil, fmt.Errorf("%s of shape %v is not cut evenly along dim %d by the %d ranks of axis %s: %d %% %d = %d; along a dim other than 0 the number of ranks must divide it: cut it along dim 0",
			s.name, s.shape, s.dim, n, shardAxis, s.shape[s.dim], n, s.shape[s.dim]%n)
	}
	s.chunkShape = slices.Clone(s.shape)
	s.chunkShape[s.dim] = (s.shape[s.dim] + n - 1) / n
	s.padded = slices.Clone(s.shape)
	s.padded[s.dim] = s.chunkShape[s.dim] * n
	for _, a := range s.mesh.Axes() {
		at, owes := mesh.Replicate(), mesh.Partial(dist.Sum)
		if a.Name == shardAxis {
			at = mesh.Shard(s.dim)
		}
		s.sharded, s.owing, s.whole = append(s.sharded, at), append(s.owing, owes), append(s.whole, mesh.Replicate())
	}
	return s, nil
}

// shard makes the memory of the unit, and the parameters this rank's shards.
func (u *shardUnit) shard() error {
	u.allocate()
	for _, s := range u.params {
		boxes, err := mesh.Boxes(s.shape, s.mesh.Shape(), s.sharded, s.mesh.Coordinate())
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		start := 0
		if s.rows = 0; len(boxes) > 0 {
			start, s.rows = boxes[0].Start[s.dim], boxes[0].Shape[s.dim]
		}
		old := s.param.Data()
		s.data = s.present(s.chunk, s.rows)
		switch {
		case s.device == tensor.Meta && s.numPieces > 1:
			s.meta = old
			s.data = tensor.New(tensor.Meta, s.dtype, s.data.Shape()...)
		case s.device == tensor.Meta: // a view remembers how its elements are made
			s.meta, s.data = old, old.Narrow(s.dim, start, s.rows)
		case s.rows > 0:
			s.chunk.Narrow(s.dim, 0, s.rows).CopyFrom(old.Reshape(s.shape...).Narrow(s.dim, start, s.rows))
		}
		s.param.SetData(s.data)
		if u.f.shards.Size() > 1 {
			s.param.SetWhole(s.present(s.base, s.shape[s.dim]).Shape())
		}
		s.param.SetGrad(nil)
		s.param.SetGradBuffer(nil)
		s.param.OnZeroGrad(s.forget)
	}
	u.prepare()
	return nil
}

// allocate makes the memory of the unit's shards, and that of its full values, which is released.
func (u *shardUnit) allocate() {
	for s, chunk := range layOut(u.params, 1, shardDType, memoryFor(u.f.shards)) {
		s.chunk = chunk
		s.chunk.SetName(s.name)
	}
	low := slices.DeleteFunc(slices.Clone(u.params), func(s *shardParam) bool { return s.fullDType == s.dtype })
	for s, wire := range layOut(low, 1, fullDType, memoryFor(u.f.shards)) {
		s.wire = wire
		s.wire.SetName(s.name)
	}
	for _, s := range u.params {
		s.base = tensor.On(s.device).Released(s.fullDType, s.padded...)
		s.base.SetName(s.name)
		s.full = s.present(s.base, s.shape[s.dim])
		s.full.SetName(s.name)
	}
}

// dimOf returns the dim along which a parameter is cut. If another axis has cut the chosen dim into
// pieces that the ranks do not cut evenly, it is another dim that they do. All ranks choose the same.
func (f *FSDP) dimOf(p *nn.Parameter) int {
	l := f.split.lays[p]
	chosen := f.shardDim(p.Name(), slices.Clone(l.shape))
	if chosen < 0 || chosen >= len(l.shape) || l.pieces(chosen) == 1 || f.unevenPiece(l, chosen) == 0 {
		return chosen
	}
	for d := range l.shape {
		if l.pieces(d) == 1 && f.unevenPiece(l, d) == 0 {
			return d
		}
	}
	return chosen
}

// unevenPiece returns how many rows a piece of a dim has that the ranks do not cut evenly: on this
// rank or on another one. It is 0 if they cut all of them evenly.
func (f *FSDP) unevenPiece(l *lay, dim int) int {
	for _, size := range f.split.localDims(l, dim) {
		if rows := size / l.pieces(dim); rows%f.shards.Size() != 0 {
			return rows
		}
	}
	return 0
}

// present returns the first n rows, along the dim that is cut, of what is laid out as base is, in
// the shape that others see.
func (s *shardParam) present(t *tensor.Tensor, n int) *tensor.Tensor {
	t = t.Narrow(s.dim, 0, n)
	if s.numPieces <= 1 {
		return t
	}
	return t.Reshape(slices.Replace(t.Shape(), s.dim-1, s.dim+1, s.numPieces*n)...)
}

// forget drops a whole gradient that was kept under NoSync.
func (s *shardParam) forget() {
	u := s.unit
	s.holds = false
	if u.grads != nil && u.reducing == nil && !slices.ContainsFunc(u.params, func(o *shardParam) bool { return o.holds }) {
		u.forgetGrads()
	}
}

// Forward runs a model that is an nn.Module. In a training pass, the Backward that follows
// averages the gradients.
func (f *FSDP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m, ok := f.Model.(nn.Module)
	if !ok {
		c.Fail(fmt.Errorf("fsdp: a %T has several inputs or results: call the FSDP by CallN", f.Model))
	}
	return f.around(c, func(c *nn.Ctx) []*tensor.Tensor { return []*tensor.Tensor{c.Call(m, x)} })[0]
}

// ForwardN is Forward for an nn.ModuleN.
func (f *FSDP) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	m, ok := f.Model.(nn.ModuleN)
	if !ok {
		c.Fail(fmt.Errorf("fsdp: a %T has one input and one result: call the FSDP by Call", f.Model))
	}
	return f.around(c, func(c *nn.Ctx) []*tensor.Tensor { return c.CallN(m, x...) })
}

// around runs the model in a pass.
func (f *FSDP) around(c *nn.Ctx, run func(c *nn.Ctx) []*tensor.Tensor) []*tensor.Tensor {
	if err := f.prepare(c); err != nil {
		c.Fail(err)
	}
	y := run(f.split.innermost(c.With(f)))
	if p := f.passOf(c); !p.recording {
		f.outlines[false] = p.outline()
		if _, err := f.agree(c, p, nil)(); err != nil {
			c.Fail(err)
		}
		p.trace = p.trace[:0]
	}
	return y
}

// prepare makes a training pass average its gradients. A pass may run the model several times,
// but is prepared once.
func (f *FSDP) prepare(c *nn.Ctx) error {
	if c.HasLeaves() {
		return errors.New("fsdp: nn.WithLeaves takes the gradients of the pass elsewhere, as distributed autograd does, and they could not be reduced: use DDP there, or run the pass without it")
	}
	for _, s := range f.params {
		if s.meta != nil {
			return fmt.Errorf("fsdp: %s is on device %s, and has no values: call FSDP.Materialize before the first pass", s.name, tensor.Meta.Name())
		}
		if s.param.Data() != s.data {
			if err := s.adopt(); err != nil {
				return err
			}
		}
	}
	for _, p := range f.passes {
		if p.tape.Value() == c.Tape() {
			return nil
		}
	}
	p := f.passOf(c)
	if !p.recording {
		return nil
	}
	// The average is a sum of gradients that are small from the start.
	c.Tape().ScaleGrads(1 / float64(f.split.numSamplers()))
	f.checkTypes(c.Tape())
	c.Tape().BeforeBackward(p.begin)
	c.Tape().AfterBackward(p.finish)
	c.Tape().AfterFailure(p.abandon)
	if !p.sync {
		return nil
	}
	return f.SyncBuffers(c)
}

// adopt takes over a shard that SetData has replaced.
func (s *shardParam) adopt() error {
	d := s.param.Data()
	if !slices.Equal(d.Shape(), s.data.Shape()) || d.DType() != s.dtype {
		return fmt.Errorf("fsdp: %s is %v%v since FullyShard, by SetData, and this rank's shard is %v%v: write the shard in place, or call FullyShard after SetData",
			s.name, d.DType(), d.Shape(), s.dtype, s.data.Shape())
	}
	if d.Device() == tensor.Meta || d.Device() != s.device {
		return fmt.Errorf("fsdp: %s is on device %s, and its shard was made on %s: write the shard in place", s.name, d.Device().Name(), s.device.Name())
	}
	s.data.CopyFrom(d)
	s.param.SetData(s.data)
	return nil
}

// InterceptCall gathers a unit around the call of its module.
func (f *FSDP) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	u := f.unitOf[module]
	if u == nil || c.IsShapesOnly() {
		return next(c, x)
	}
	p := f.passOf(c)
	if c.Recomputing() {
		return p.rerun(c, u, x, next)
	}
	i, err := p.enter(c, u)
	if err != nil {
		c.Fail(err)
	}
	y := next(c, p.wrap("fsdp release", i, x))
	return p.wrap("fsdp gather", p.leave(c, u), y)
}

// InterceptParam gives the model the full value of a parameter.
func (f *FSDP) InterceptParam(c *nn.Ctx, param *nn.Parameter, next func(c *nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	s := f.paramOf[param]
	if s == nil {
		return next(c)
	}
	p := f.passOf(c)
	if p.held[s.unit] == 0 {
		where := "the call of the model"
		if s.unit.path != "" {
			where = "the call of " + s.unit.path
		}
		panic(tensor.NewError("param", []*tensor.Tensor{s.full}, "the parameter is read outside of %s, to whose unit it belongs, and is away: read it there, call the module by Ctx.Call, or choose a policy with a unit around both", where))
	}
	if !p.bound[s] {
		p.bound[s] = true
		var leaf tensor.Leaf
		if !param.Frozen && !s.frozen {
			leaf = s
		}
		if f.types.pass != nil {
			f.types.pass.Param(s.full, s.use(s.at))
		}
		c.Bind(param, c.Tape().Watch(s.full, leaf))
	}
	return next(c)
}

// NoSync runs fn with averaging off: its backward passes add up the gradients of full values on
// this rank alone, and the first pass afterwards sums them over the ranks. It saves the
// communication, and takes the memory of the whole gradients: without it, the passes of an
// accumulation sum their gradients each, and give the same. Inside another NoSync it changes
// nothing.
func (f *FSDP) NoSync(fn func() error) error {
	outside := f.sync
	f.sync = false
	defer func() { f.sync = outside }()
	return fn()
}

// Step runs the passes one after the other. Each of them reduces its gradients, so that no rank
// holds whole ones between passes; run them under NoSync to reduce once.
func (f *FSDP) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	if loss, err = runPasses(ctx, f, microbatches, !f.sync, nil); err == nil {
		err = balanceExperts(ctx, f.Model, f.world.group())
	}
	return loss, err
}

// ClipGradNorm sums the squares of this rank's shards over the ranks that have the others.
func (f *FSDP) ClipGradNorm(ctx context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	var shards, whole []*tensor.Tensor
	for _, p := range params {
		switch g := p.Grad(); {
		case p.RowGrad() != nil:
			whole = append(whole, p.RowGrad().Rows)
		case g == nil:
		case f.paramOf[p] != nil:
			shards = append(shards, g)
		default:
			whole = append(whole, g)
		}
	}
	sum := func(gs []*tensor.Tensor) *tensor.Tensor {
		gs = slices.DeleteFunc(gs, func(g *tensor.Tensor) bool { return g.NumElems() == 0 })
		if len(gs) == 0 {
			return tensor.New(f.device, tensor.Float64)
		}
		return tensor.SumSquaresAll(gs...)
	}
	squares := mesh.Tensor{Local: sum(shards), Layout: mesh.Layout{Mesh: f.mesh, Shape: []int{}}}
	squares.Local.SetName("the squares of the gradients")
	for _, a := range f.mesh.Axes() {
		p := mesh.Replicate()
		if a.Name == shardAxis {
			p = mesh.Partial(dist.Sum)
		}
		squares.Placements = append(squares.Placements, p)
	}
	summed, err := mesh.AllReduce(ctx, shardAxis, squares)
	if err != nil {
		return nil, nil, fmt.Errorf("fsdp: sum the squares of the gradients: %w", err)
	}
	if err := summed[0].Expect(make([]mesh.Placement, len(squares.Placements))...); err != nil {
		return nil, nil, fmt.Errorf("fsdp: clip: %w", err)
	}
	norm = summed[0].Local.Add(sum(whole)).Sqrt()
	return norm, optim.ClipScale(norm, maxNorm), nil
}

// SyncBuffers gives every rank rank 0's buffers. Training passes begin with it.
func (f *FSDP) SyncBuffers(ctx context.Context) error {
	for _, s := range f.shared {
		if err := s.broadcast(ctx, f.world); err != nil {
			return err
		}
	}
	return nil
}

// StateDict returns this rank's shards of the parameters, and the buffers, by name. Layout says
// which part of a parameter a shard is.
func (f *FSDP) StateDict() nn.NamedTensors { return nn.StateDict(f.Model) }

// Layout returns how a parameter is spread over the mesh.
func (f *FSDP) Layout(p *nn.Parameter) mesh.Layout {
	s := f.paramOf[p]
	if s == nil {
		return mesh.Layout{Mesh: f.mesh, Shape: p.Data().Shape(), Placements: make([]mesh.Placement, len(f.mesh.Axes()))}
	}
	return mesh.Layout{Mesh: f.mesh, Shape: slices.Clone(s.shape), Placements: slices.Clone(s.sharded)}
}

// Unused returns the names of the parameters that no rank has reached in the last synchronised
// backward pass.
func (f *FSDP) Unused() []string { return slices.Clone(f.unused) }

// String says over how many ranks the model is sharded, and in how many units.
func (f *FSDP) String() string {
	s := fmt.Sprintf("FSDP over %s", countRanks(f.shards.Size()))
	if n := f.mesh.Size() / f.shards.Size(); n > 1 {
		s = fmt.Sprintf("HSDP, %d replicas over %s each", n, countRanks(f.shards.Size()))
	}
	if len(f.units) == 1 {
		return s + " in 1 unit"
	}
	return fmt.Sprintf("%s in %d units", s, len(f.units))
}

var errUnfinishedShards = errors.New("fsdp: an earlier backward pass has not come to its end, so the ranks may be at different gradients: begin again from a checkpoint with a new group")
