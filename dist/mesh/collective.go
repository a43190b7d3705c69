// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// Pending is a collective under way. Its tensors belong to it until it has ended.
type Pending struct {
	work *dist.Work
	err  error // of the arguments: nothing was sent
	out  []Tensor
}

// Wait returns the results when the collective has ended. The end of this ctx leaves it
// running, as [dist.Work.Wait] does.
func (p *Pending) Wait(ctx context.Context) ([]Tensor, error) {
	if p.err != nil {
		return nil, p.err
	}
	if p.work == nil {
		return p.out, nil
	}
	if err := p.work.Wait(ctx); err != nil {
		return nil, err
	}
	return p.out, nil
}

// Planned returns what a collective with these results would be, without one: Wait returns them
// at once.
func Planned(results ...Tensor) *Pending { return &Pending{out: results} }

// Done is closed when the collective has ended: nothing reads or writes its tensors.
func (p *Pending) Done() <-chan struct{} {
	if p.err != nil || p.work == nil {
		return ended
	}
	return p.work.Done()
}

// ended is the Done of collectives that sent nothing.
var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Ended reports whether the collective has ended.
func (p *Pending) Ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// TypeError says that a value does not have the sharding type that its user needs.
type TypeError struct {
	Name string    // of the value, such as a parameter's path; it may be empty
	Axis string    // the axis of the mesh on which the types differ
	Is   Placement // the type of the value on that axis
	Want string    // what the user needs there
	Do   string    // what to do
}

func (e *TypeError) Error() string {
	name := e.Name
	if name == "" {
		name = "a value"
	}
	return fmt.Sprintf("mesh: %s is %v on axis %s, want %s: %s", name, e.Is, e.Axis, e.Want, e.Do)
}

// Expect returns a [*TypeError] unless the value has just these placements, one for each axis
// of the mesh. Who uses a result, for example as the gradient of a parameter, asks it: a
// reduction that is missing, or took place on another axis, shows here.
func (t Tensor) Expect(want ...Placement) error {
	if len(want) != len(t.Placements) {
		return fmt.Errorf("mesh: %s has %d placements, want %d", t.name(), len(t.Placements), len(want))
	}
	for i, w := range want {
		if is := t.Placements[i]; is != w {
			e := &TypeError{Name: t.name(), Axis: t.Mesh.axes[i].Name, Is: is, Want: w.String(), Do: "redistribute it first"}
			if _, owed := is.IsPartial(); owed {
				e.Do = "a reduction over the axis is missing"
			}
			return e
		}
	}
	return nil
}

// As returns the same local values under other placements, without communication: the caller
// knows that they are true. Gradients are Partial where the ranks have computed them from
// samples of their own.
func (t Tensor) As(placements ...Placement) Tensor {
	t.Placements = placements
	return t
}

func (t Tensor) name() string {
	if t.Local == nil {
		return ""
	}
	return t.Local.Name()
}

// AllReduceAsync reduces values that are Partial on the axis, in place, by the operation that
// each of them owes there. The results are Replicate on the axis. All values owe the same.
func AllReduceAsync(ctx context.Context, axis string, values ...Tensor) *Pending {
	c := newCollective("all-reduce", axis, values)
	op := c.owed()
	if c.err != nil {
		return c.failed()
	}
	p := &Pending{out: c.results(Replicate())}
	if len(values) == 1 {
		p.work = c.group.AllReduceAsync(ctx, values[0].Local, op)
	} else {
		p.work = c.group.AllReduceCoalescedAsync(ctx, c.locals(), op)
	}
	return p
}

// AllReduce is [AllReduceAsync] that waits.
func AllReduce(ctx context.Context, axis string, values ...Tensor) ([]Tensor, error) {
	return AllReduceAsync(ctx, axis, values...).Wait(context.WithoutCancel(ctx))
}

// ReduceScatterAsync reduces values that are Partial on the axis by the operation that each of
// them owes there, and leaves each rank the chunk of dim that belongs to it: dsts has a
// contiguous tensor for each. The results are Shard(dim) on the axis, whose size divides dim.
func ReduceScatterAsync(ctx context.Context, axis string, dim int, dsts []*tensor.Tensor, values ...Tensor) *Pending {
	c := newCollective("reduce-scatter", axis, values)
	op := c.owed()
	c.paired(dsts, dim)
	if c.err != nil {
		return c.failed()
	}
	p := &Pending{out: c.results(Shard(dim))}
	for i := range p.out {
		p.out[i].Local = dsts[i]
	}
	switch {
	case len(values) == 1 && dim == 0:
		p.work = c.group.ReduceScatterAsync(ctx, dsts[0], values[0].Local, op)
	case dim == 0:
		p.work = c.group.ReduceScatterCoalescedAsync(ctx, dsts, c.locals(), op)
	default:
		p.work = c.group.ReduceScatterListAsync(ctx, dsts[0], c.chunks(values[0].Local, dim), op)
	}
	return p
}

// ReduceScatter is [ReduceScatterAsync] that waits.
func ReduceScatter(ctx context.Context, axis string, dim int, dsts []*tensor.Tensor, values ...Tensor) ([]Tensor, error) {
	return ReduceScatterAsync(ctx, axis, dim, dsts, values...).Wait(context.WithoutCancel(ctx))
}

// AllGatherAsync puts the chunks of values that are Shard on the axis together in dsts, which
// has a contiguous tensor for each. The results are Replicate on the axis, whose size divides
// the dim that it cuts.
func AllGatherAsync(ctx context.Context, axis string, dsts []*tensor.Tensor, values ...Tensor) *Pending {
	c := newCollective("all-gather", axis, values)
	dim := c.cut()
	c.paired(dsts, dim)
	if c.err != nil {
		return c.failed()
	}
	p := &Pending{out: c.results(Replicate())}
	for i := range p.out {
		p.out[i].Local = dsts[i]
	}
	switch {
	case len(values) == 1 && dim == 0:
		p.work = c.group.AllGatherAsync(ctx, dsts[0], values[0].Local)
	case dim == 0:
		p.work = c.group.AllGatherCoalescedAsync(ctx, dsts, c.locals())
	default:
		p.work = c.group.AllGatherListAsync(ctx, c.chunks(dsts[0], dim), values[0].Local)
	}
	return p
}

// AllGather is [AllGatherAsync] that waits.
func AllGather(ctx context.Context, axis string, dsts []*tensor.Tensor, values ...Tensor) ([]Tensor, error) {
	return AllGatherAsync(ctx, axis, dsts, values...).Wait(context.WithoutCancel(ctx))
}

// BroadcastAsync gives each rank of the axis the values of the rank whose coordinate on the
// axis is root, in place. The values are Varying on the axis, and the results Replicate.
func BroadcastAsync(ctx context.Context, axis string, root int, values ...Tensor) *Pending {
	c := newCollective("broadcast", axis, values)
	for _, v := range values {
		if c.err == nil && !v.Placements[c.index].IsVarying() {
			c.mistyped(v, "Varying")
		}
	}
	if c.err != nil {
		return c.failed()
	}
	p := &Pending{out: c.results(Replicate())}
	if len(values) == 1 {
		p.work = c.group.BroadcastAsync(ctx, values[0].Local, root)
	} else {
		p.work = c.group.BroadcastCoalescedAsync(ctx, c.locals(), root)
	}
	return p
}

// collective is a call being checked.
type collective struct {
	op     string
	axis   string
	index  int // of the axis
	size   int // of the axis
	group  *dist.Group
	values []Tensor
	err    error
}

func newCollective(op, axis string, values []Tensor) *collective {
	c := &collective{op: op, axis: axis, values: values}
	if len(values) == 0 {
		c.refuse("there are no values")
		return c
	}
	m := values[0].Mesh
	if m == nil {
		c.refuse("%s is not spread over a mesh", values[0].name())
		return c
	}
	if c.group, c.err = m.Group(axis); c.err != nil {
		return c
	}
	c.index, _ = m.Index(axis)
	c.size = m.axes[c.index].Size
	for _, v := range values {
		switch {
		case v.Mesh != m:
			c.refuse("%s is spread over another mesh than %s", v.name(), values[0].name())
		case len(v.Placements) != len(m.axes):
			c.refuse("%s has %d placements, and the mesh %d axes", v.name(), len(v.Placements), len(m.axes))
		case v.Local == nil:
			c.refuse("a value has no tensor on this rank")
		}
	}
	return c
}

func (c *collective) refuse(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("mesh: %s over axis %s: %w", c.op, c.axis, fmt.Errorf(format, args...))
	}
}

func (c *collective) failed() *Pending { return &Pending{err: c.err} }

// mistyped notes that a value has another type than the collective pays off.
func (c *collective) mistyped(v Tensor, want string) {
	if c.err != nil {
		return
	}
	is := v.Placements[c.index]
	do := fmt.Sprintf("an %s has nothing to do there", c.op)
	if !strings.HasPrefix(c.op, "a") {
		do = fmt.Sprintf("a %s has nothing to do there", c.op)
	}
	if i := slices.IndexFunc(v.Placements, func(p Placement) bool { _, owed := p.IsPartial(); return owed }); want == "Partial" && i >= 0 {
		do = fmt.Sprintf("it owes its reduction on axis %s", v.Mesh.axes[i].Name)
	} else if want == "Partial" && is.IsReplicate() {
		do = "it has been reduced already, and would be counted several times"
	}
	c.err = &TypeError{Name: v.name(), Axis: c.axis, Is: is, Want: want, Do: do}
}

// owed returns the reduction that all values owe on the axis.
func (c *collective) owed() (op dist.ReduceOp) {
	if c.err != nil {
		return op
	}
	for i, v := range c.values {
		theirs, owed := v.Placements[c.index].IsPartial()
		if !owed {
			c.mistyped(v, "Partial")
			return op
		}
		if i > 0 && theirs != op {
			c.refuse("%s owes %v, %s owes %v: reduce them apart", c.values[0].name(), op, v.name(), theirs)
		}
		op = theirs
	}
	return op
}

// cut returns the dim that the axis cuts of all values.
func (c *collective) cut() (dim int) {
	if c.err != nil {
		return 0
	}
	for i, v := range c.values {
		d, cut := v.Placements[c.index].IsShard()
		if !cut || v.Placements[c.index].NumPieces() > 1 {
			c.mistyped(v, "Shard")
			return 0
		}
		if i > 0 && d != dim {
			c.refuse("%s is cut along dim %d, %s along dim %d: gather them apart", c.values[0].name(), dim, v.name(), d)
		}
		dim = d
	}
	return dim
}

// paired checks the destinations of values of which the axis cuts a dim, or is to cut it.
func (c *collective) paired(dsts []*tensor.Tensor, dim int) {
	if c.err != nil {
		return
	}
	if len(dsts) != len(c.values) {
		c.refuse("there are %d destinations for %d values", len(dsts), len(c.values))
		return
	}
	if dim != 0 && len(dsts) != 1 {
		c.refuse("values that are cut along dim %d are communicated one at a time", dim)
		return
	}
	for _, v := range c.values {
		if dim >= len(v.Shape) || v.Shape[dim]%c.size != 0 {
			c.refuse("%s of shape %v is not cut evenly by %d ranks along dim %d: pad it first", v.name(), v.Shape, c.size, dim)
			return
		}
		for i, p := range v.Placements {
			if d, cut := p.IsShard(); cut && d == dim && i != c.index {
				c.refuse("axis %s cuts dim %d of %s too: redistribute it", v.Mesh.axes[i].Name, dim, v.name())
				return
			}
		}
	}
}

// results returns the values with another placement on the axis.
func (c *collective) results(p Placement) []Tensor {
	out := slices.Clone(c.values)
	for i := range out {
		out[i].Placements = slices.Clone(out[i].Placements)
		out[i].Placements[c.index] = p
	}
	return out
}

func (c *collective) locals() []*tensor.Tensor {
	ts := make([]*tensor.Tensor, len(c.values))
	for i, v := range c.values {
		ts[i] = v.Local
	}
	return ts
}

// chunks returns the parts of a tensor that the ranks of the axis have, as views.
func (c *collective) chunks(t *tensor.Tensor, dim int) []*tensor.Tensor {
	n := t.Dim(dim) / c.size
	parts := make([]*tensor.Tensor, c.size)
	for r := range parts {
		parts[r] = t.Narrow(dim, r*n, n)
	}
	return parts
}
