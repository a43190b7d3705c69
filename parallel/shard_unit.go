// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// shardParam is a parameter of which this rank has a shard.
//
//	chunk  [c, …]    this rank's shard, padded to the size that all ranks have
//	data   [≤c, …]   its rows that there are: the parameter's Data
//	base   [N·c, …]  the chunks of all ranks, which has memory only while it is used
//	full   [n, …]    the parameter as the model reads it: a view of base
type shardParam struct {
	param  *nn.Parameter
	name   string
	unit   *shardUnit
	index  int // among the parameters that are trained
	dim    int // that is cut
	rows   int // of data along dim
	shape  []int
	dtype  tensor.DType // of the shard
	frozen bool

	// Into how many pieces another axis has cut the dim before it cut each of them. With more than
	// one, shape has a dim of this size before dim; see present.
	numPieces int

	// Of the full value and of what is reduced; dtype without mixed precision.
	fullDType, gradDType tensor.DType

	chunk, data, base, full *tensor.Tensor
	meta                    *tensor.Tensor // the parameter on tensor.Meta, nil if it has been made

	// wire is the chunk in fullDType, nil where that is dtype, and as of which version.
	wire        *tensor.Tensor
	wireVersion uint32

	part *tensor.Tensor // see shardUnit.partOf; in fullDType, nil if none was kept yet

	padded     []int // shape of base
	chunkShape []int
	device     tensor.Device

	mesh    *mesh.Mesh // has the axis fsdp, and
	sumAxis string     // the ranks over which shards of gradients are summed, "" for none

	sharded []mesh.Placement
	owing   []mesh.Placement // of gradients before they are reduced
	whole   []mesh.Placement
	at      []mesh.Placement // of what is in base

	// The gradient of the full value, in memory that is lent to the unit for a while.
	fullGrad   *tensor.Tensor // of the shape of full; nil without memory
	paddedGrad *tensor.Tensor // of the shape of base
	holds      bool           // there is a gradient in it
	// The reduced gradient.
	landings  [2]*tensor.Tensor // padded shards: where the optimizer finds it, and beside
	landing   *tensor.Tensor    // the one of them where it arrives in this pass
	shardGrad *tensor.Tensor    // what the optimizer sees: the rows of the first, or in dtype
	reduced   mesh.Tensor
}

// GradBuffer lends the tape the memory of the whole gradient; see tensor.Leaf.
func (s *shardParam) GradBuffer() (*tensor.Tensor, bool) {
	s.unit.lendGrads()
	return s.fullGrad, s.holds
}

// GradReady is called by the tape. The unit is reduced later, at a place of the pass that is
// the same on every rank.
func (s *shardParam) GradReady(context.Context) error {
	s.holds = true
	return nil
}

// shardUnit is a module whose parameters are gathered and released together.
type shardUnit struct {
	f      *FSDP
	path   string
	module any
	params []*shardParam
	calls  [][]*shardParam // what one collective gathers
	sums   [][]*shardParam // what one collective reduces

	// Who uses the full values: calls of the module under way, and passes that come back to it.
	holds  int
	here   bool
	coming []*mesh.Pending // gathers under way
	source *shardPass      // whose parts they gather; nil for the shards
	partOf *shardPass      // whose full values this rank has a part of; nil for none
	broken bool            // a gather failed, or was not ended when its pass was given up

	grads    []*tensor.Tensor // memory of whole gradients, one a dtype; nil without
	reducing []*mesh.Pending
	summing  []summing
	extra    bool // the reduced gradients arrive beside those that there are
}

// summing is the sum of shards of gradients over the ranks that have the same shards.
type summing struct {
	params []*shardParam
	*mesh.Pending
}

// name is what errors call the unit.
func (u *shardUnit) name() string {
	if u.path == "" {
		return "the model's own parameters"
	}
	return "the parameters of " + u.path
}

// packLimit is below how many bytes of a chunk parameters share a collective. Large parameters
// are gathered right to where the model reads them; parameters that share a collective pass
// through staging memory.
const packLimit = 32 << 10

// pack divides parameters into lists that one collective takes: those of fewer bytes a chunk than
// limit share one, if they have the same ranks.
func pack(params []*shardParam, dtype func(s *shardParam) tensor.DType, limit int) [][]*shardParam {
	type kind struct {
		dtype tensor.DType
		ranks *mesh.Mesh
	}
	var calls [][]*shardParam
	small := map[kind]int{} // index in calls
	for _, s := range params {
		d := kind{dtype(s), s.mesh}
		if s.dim != 0 || numElemsOf(s.chunkShape)*d.dtype.Size() >= limit {
			calls = append(calls, []*shardParam{s})
			continue
		}
		i, ok := small[d]
		if !ok {
			i = len(calls)
			small[d] = i
			calls = append(calls, nil)
		}
		calls[i] = append(calls[i], s)
	}
	return calls
}

// prepare lays out what the unit communicates.
func (u *shardUnit) prepare() {
	u.calls = pack(u.params, fullDType, packLimit)
	var trained []*shardParam
	for _, s := range u.params {
		if !s.frozen {
			trained = append(trained, s)
		}
	}
	u.sums = pack(trained, gradDType, packLimit)
}

func shardDType(s *shardParam) tensor.DType { return s.dtype }
func fullDType(s *shardParam) tensor.DType  { return s.fullDType }
func gradDType(s *shardParam) tensor.DType  { return s.gradDType }

// gather begins to bring the full values.
func (u *shardUnit) gather(ctx context.Context) error {
	if u.here || u.coming != nil || len(u.params) == 0 {
		return nil
	}
	if u.broken {
		return fmt.Errorf("fsdp: gather %s: an earlier gather has failed: begin again from a checkpoint with a new group", u.name())
	}
	u.f.plan.count(u.fullBytes())
	for _, call := range u.calls {
		values, bases := make([]mesh.Tensor, len(call)), make([]*tensor.Tensor, len(call))
		for i, s := range call {
			values[i], bases[i] = u.toGather(s), s.base
		}
		// All have their memory when the collective begins, and count it as no write.
		var restore func(i int) error
		restore = func(i int) error {
			if i == len(bases) {
				u.coming = append(u.coming, u.f.allGather(ctx, bases, values))
				return nil
			}
			return bases[i].Restore(func(*tensor.Tensor) error { return restore(i + 1) })
		}
		if err := restore(0); err != nil {
			return fmt.Errorf("fsdp: gather %s: %w", u.name(), err)
		}
	}
	return nil
}

// toSend returns what the others gather of this rank.
func (s *shardParam) toSend() *tensor.Tensor {
	if s.wire == nil {
		return s.chunk
	}
	if v := s.chunk.Version() + 1; s.wireVersion != v {
		low := s.chunk.To(s.fullDType)
		s.wire.CopyFrom(low)
		low.Free()
		s.wireVersion = v
	}
	return s.wire
}

// arrive waits until the full values are here.
func (u *shardUnit) arrive(ctx context.Context) error {
	if u.here || len(u.params) == 0 {
		u.here = true
		return nil
	}
	if err := u.gather(ctx); err != nil {
		return err
	}
	// The gathers end with ctx themselves, and then say for whom they waited.
	wait := context.WithoutCancel(ctx)
	for i, p := range u.coming {
		out, err := p.Wait(wait)
		for j := 0; err == nil && j < len(out); j++ {
			err = u.calls[i][j].gathered(out[j])
		}
		if err != nil {
			u.broken = true
			return fmt.Errorf("fsdp: gather %s: %w", u.name(), err)
		}
	}
	u.coming, u.source, u.here = nil, nil, true
	return nil
}

// hold brings the full values and keeps them until drop.
func (u *shardUnit) hold(ctx context.Context) error {
	if err := u.arrive(ctx); err != nil {
		return err
	}
	u.holds++
	return nil
}

// drop ends a hold; with the last one the memory is given up.
func (u *shardUnit) drop() {
	if u.holds--; u.holds == 0 {
		u.release()
	}
}

// release gives the memory of the full values up.
func (u *shardUnit) release() {
	if !u.here || u.holds > 0 {
		return
	}
	u.here = false
	for _, s := range u.params {
		s.base.Release()
		s.at = s.sharded
	}
	u.f.plan.count(-u.fullBytes())
}

// refresh gives up the full values that are here for other passes alone, so that they are
// gathered once more, into the same memory: since those passes have gathered them, an optimizer
// may have stepped. That asks for no look at the shards, of which ranks may have none: all ranks
// must come to the same.
func (u *shardUnit) refresh() {
	if !u.here {
		return
	}
	holds := u.holds
	u.holds = 0
	u.release()
	u.holds = holds
}

// settle ends gathers that nobody has waited for. It waits for them until ctx ends.
func (u *shardUnit) settle(ctx context.Context) {
	if u.coming == nil {
		return
	}
	ended := true
	for _, p := range u.coming {
		if _, err := p.Wait(ctx); err != nil {
			u.broken = true
		}
		ended = ended && p.Ended()
	}
	if !ended {
		u.broken = true // the memory stays with the gathers
		return
	}
	u.coming, u.source, u.here = nil, nil, true
	u.release()
}

// shardVersion returns the sum of the versions of all shards.
func (u *shardUnit) shardVersion() uint32 {
	v := uint32(0)
	for i, s := range u.params {
		v += s.chunk.Version() * uint32(2*i+1)
	}
	return v
}

// lendGrads gets memory for the whole gradients of the unit.
func (u *shardUnit) lendGrads() {
	if u.grads != nil {
		return
	}
	sizes, dtypes := map[tensor.DType]int{}, []tensor.DType(nil)
	for _, s := range u.params {
		if s.frozen {
			continue
		}
		if _, ok := sizes[s.gradDType]; !ok {
			dtypes = append(dtypes, s.gradDType)
		}
		sizes[s.gradDType] += roundUp(s.base.NumElems(), s.gradDType)
	}
	for _, d := range dtypes {
		flat := u.f.arenas.take(u.f, d, sizes[d])
		u.grads = append(u.grads, flat)
		offset := 0
		for _, s := range u.params {
			if s.frozen || s.gradDType != d {
				continue
			}
			n := s.base.NumElems()
			s.paddedGrad = flat.Narrow(0, offset, n).Reshape(s.padded...)
			s.fullGrad = s.present(s.paddedGrad, s.shape[s.dim])
			if s.dim == 0 && s.padded[0] != s.shape[0] {
				s.paddedGrad.Narrow(0, s.shape[0], s.padded[0]-s.shape[0]).Fill(0)
			}
			s.fullGrad.SetName(s.name + ".grad")
			s.paddedGrad.SetName(s.name + ".grad")
			offset += roundUp(n, d)
		}
	}
}

// roundUp makes what follows begin at a cache line.
func roundUp(n int, d tensor.DType) int {
	line := 64 / d.Size()
	return (n + line - 1) / line * line
}

// forgetGrads drops the whole gradients and gives their memory back.
func (u *shardUnit) forgetGrads() {
	for _, s := range u.params {
		s.fullGrad, s.paddedGrad, s.holds = nil, nil, false
	}
	for _, flat := range u.grads {
		u.f.arenas.put(flat)
	}
	u.grads = nil
}

// reduce begins to sum the whole gradients over the ranks that have shards. Where this rank
// has no gradient it brings zeros; used gets a bit for each parameter of which it has one.
func (u *shardUnit) reduce(ctx context.Context, used []int64) {
	if len(u.sums) == 0 {
		return
	}
	u.lendGrads()
	u.extra = false
	for _, s := range u.params {
		switch {
		case s.frozen:
			continue
		case s.holds:
			used[s.index/63] |= 1 << (s.index % 63)
		default:
			s.fullGrad.Fill(0)
		}
		u.extra = u.extra || s.param.Grad() != nil
	}
	u.land()
	for _, call := range u.sums {
		values, dsts := make([]mesh.Tensor, len(call)), make([]*tensor.Tensor, len(call))
		for i, s := range call {
			values[i] = mesh.Tensor{Local: s.paddedGrad, Layout: mesh.Layout{Mesh: s.mesh, Shape: s.padded, Placements: s.owing}}
			dsts[i] = s.landing
		}
		u.reducing = append(u.reducing, u.f.reduceScatter(ctx, call[0].dim, dsts, values))
	}
}

// land chooses where the reduced gradients arrive: where the optimizer finds them, or beside
// that, where there are gradients to which they are added.
func (u *shardUnit) land() {
	for _, s := range u.params {
		if s.frozen {
			continue
		}
		if s.landings[0] == nil {
			u.allocateLandings(0)
		}
		s.landing = s.landings[0]
		if u.extra {
			if s.landings[1] == nil {
				u.allocateLandings(1)
			}
			s.landing = s.landings[1]
		}
	}
}

// allocateLandings makes the memory of reduced gradients, for all parameters of the unit that
// have none: one tensor for each dtype.
func (u *shardUnit) allocateLandings(which int) {
	trained := slices.DeleteFunc(slices.Clone(u.params), func(s *shardParam) bool { return s.frozen })
	for s, view := range layOut(trained, 1, gradDType, landingMemory(trained)) {
		view.SetName(s.name + ".grad")
		s.landings[which] = view
		if which > 0 {
			continue
		}
		if s.shardGrad = s.local(view); s.gradDType != s.dtype {
			s.shardGrad = tensor.New(s.device, s.dtype, s.shardGrad.Shape()...)
		}
		s.shardGrad.SetName(s.name + ".grad")
	}
}

// landingMemory makes memory that other ranks read in place, if shards are summed in it.
func landingMemory(params []*shardParam) func(tensor.Device, tensor.DType, ...int) *tensor.Tensor {
	for _, s := range params {
		if s.sumAxis != "" && s.sumGroup().LocalSize() > 1 {
			return memoryFor(s.sumGroup())
		}
	}
	return memoryFor(nil)
}

// sumGroup is the group of sumAxis.
func (s *shardParam) sumGroup() *dist.Group {
	g, _ := s.mesh.Group(s.sumAxis) // the mesh has the axis
	return g
}

// layOut returns memory for numChunks of the chunks of each parameter: views of one tensor for
// each dtype.
func layOut(params []*shardParam, numChunks int, dtype func(s *shardParam) tensor.DType, alloc func(tensor.Device, tensor.DType, ...int) *tensor.Tensor) map[*shardParam]*tensor.Tensor {
	views, sizes := map[*shardParam]*tensor.Tensor{}, map[tensor.DType]int{}
	for _, s := range params {
		sizes[dtype(s)] += roundUp(numElemsOf(s.chunkShape)*numChunks, dtype(s))
	}
	flats := map[tensor.DType]*tensor.Tensor{}
	for _, s := range params {
		d, n := dtype(s), numElemsOf(s.chunkShape)*numChunks
		shape := slices.Clone(s.chunkShape)
		shape[s.dim] *= numChunks
		if flats[d] == nil {
			flats[d] = alloc(s.device, d, sizes[d])
			sizes[d] = 0 // from now on what is given out
		}
		views[s] = flats[d].Narrow(0, sizes[d], n).Reshape(shape...)
		sizes[d] += roundUp(n, d)
	}
	return views
}

func numElemsOf(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// local returns the part of a padded shard that there is.
func (s *shardParam) local(chunk *tensor.Tensor) *tensor.Tensor { return s.present(chunk, s.rows) }

// scattered waits for the sums over the ranks that have shards, gives the memory of the whole
// gradients back, and begins to sum over the replicas.
func (u *shardUnit) scattered(ctx context.Context) error {
	if u.reducing == nil {
		return nil
	}
	wait := context.WithoutCancel(ctx)
	var first error
	for i, p := range u.reducing {
		out, err := p.Wait(wait)
		if err != nil {
			first = errors.Join(first, err)
			continue
		}
		for j, t := range out {
			u.sums[i][j].reduced = t
		}
	}
	if first != nil {
		return fmt.Errorf("fsdp: reduce the gradients of %s: %w", u.name(), first)
	}
	u.reducing = nil
	u.forgetGrads()
	for _, call := range u.sums {
		if call[0].sumAxis == "" {
			continue
		}
		values := make([]mesh.Tensor, len(call))
		for i, s := range call {
			values[i] = s.reduced
		}
		u.summing = append(u.summing, summing{call, u.f.allReduce(ctx, call[0], values)})
	}
	return nil
}

// summed waits for the sums over the replicas.
func (u *shardUnit) summed(ctx context.Context) error {
	if u.summing == nil {
		return nil
	}
	wait := context.WithoutCancel(ctx)
	for _, p := range u.summing {
		out, err := p.Wait(wait)
		if err != nil {
			return fmt.Errorf("fsdp: reduce the gradients of %s over the replicas: %w", u.name(), err)
		}
		for j, t := range out {
			p.params[j].reduced = t
		}
	}
	u.summing = nil
	return nil
}

// deliver gives the parameters their gradients, unless no rank has used them.
func (u *shardUnit) deliver(ctx context.Context, used func(index int) bool) error {
	for _, s := range u.params {
		if s.frozen || !used(s.index) {
			continue
		}
		if err := s.reduced.Expect(s.sharded...); err != nil {
			return fmt.Errorf("fsdp: %w", err)
		}
		sum := s.local(s.landing)
		wide := sum.To(s.dtype)
		switch {
		case s.param.Grad() != nil:
			s.param.Grad().Axpy(1, wide)
		case u.extra || wide != sum:
			s.shardGrad.CopyFrom(wide)
			fallthrough
		default:
			s.param.SetGrad(s.shardGrad)
		}
		if wide != sum {
			wide.Free()
		}
		if err := s.param.GradReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// abandonGrads ends reductions under way, and drops the whole gradients. Memory to which a
// reduction may still write stays with it.
func (u *shardUnit) abandonGrads(ctx context.Context) {
	ended := true
	for _, s := range u.summing {
		u.reducing = append(u.reducing, s.Pending)
	}
	for _, p := range u.reducing {
		_, _ = p.Wait(ctx) // the pass has an error
		ended = ended && p.Ended()
	}
	u.reducing, u.summing = nil, nil
	if !ended {
		for _, s := range u.params {
			s.fullGrad, s.paddedGrad, s.holds = nil, nil, false
			s.landings = [2]*tensor.Tensor{}
		}
		u.grads = nil
		return
	}
	u.forgetGrads()
}

// arenas are memory for whole gradients that local peers read in place. It goes from unit to
// unit, so that a steady step needs no more.
type arenas struct{ free []*tensor.Tensor }

func (a *arenas) take(f *FSDP, d tensor.DType, numElems int) *tensor.Tensor {
	best := -1
	for i, t := range a.free {
		n := t.NumElems()
		if t.DType() == d && n >= numElems && n <= 2*numElems && (best < 0 || n < a.free[best].NumElems()) {
			best = i
		}
	}
	if best >= 0 {
		t := a.free[best]
		a.free = slices.Delete(a.free, best, best+1)
		return t
	}
	f.plan.keep(numElems * d.Size())
	return memoryFor(f.shards)(f.device, d, numElems)
}

func (a *arenas) put(t *tensor.Tensor) { a.free = append(a.free, t) }
