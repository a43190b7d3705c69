// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"weak"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// A forward pass writes a trace: where the calls of units begin and end. The backward pass
// walks the trace from its end. Where the call of a unit ended it gathers the unit, and where
// the call began it gives the unit up; where the first call of a unit began, the unit's
// gradients are complete and are reduced. So the order of all collectives follows from the
// trace alone. A rank whose backward pass does not come to a unit still takes part in them, and
// what a rank computes between them does not matter.
type traceEntry struct {
	unit    *shardUnit
	ends    bool // the call ended here; else it began
	first   bool // no call of the unit began before, of one that began here
	kept    bool // the unit stayed after the call that ended here, for the backward pass begins with it
	segment int  // see tensor.Tape.Segment
}

// shardPass is what one pass over a tape holds.
type shardPass struct {
	f         *FSDP
	tape      weak.Pointer[tensor.Tape]
	recording bool
	sync      bool
	trace     []traceEntry
	bound     map[*shardParam]bool
	versions  map[*shardUnit]uint32 // of the shards, when they were first gathered
	held      map[*shardUnit]int
	kept      []*shardUnit // that stay until the backward pass has come to their first call

	// of the backward pass under way
	walking   bool
	at        int          // the entries from at on have been walked
	segment   int          // in which the walk is
	together  []*shardUnit // that are held for it
	pending   []traceEntry
	reduced   []*shardUnit
	numSummed int     // reduced[:numSummed] are summed over the ranks that have shards
	used      []int64 // bits: the parameters of which this rank has a gradient
}

// outline is what a trace was like: by it the next pass knows what comes.
type outline struct {
	unit *shardUnit
	ends bool
}

// passOf returns the pass over a tape, and makes it at first.
func (f *FSDP) passOf(c *nn.Ctx) *shardPass {
	tape := c.Tape()
	for _, p := range f.passes {
		if p.tape.Value() == tape {
			return p
		}
	}
	p := &shardPass{
		f: f, tape: weak.Make(tape), recording: tape.Recording(), sync: f.sync,
		bound: map[*shardParam]bool{}, versions: map[*shardUnit]uint32{}, held: map[*shardUnit]int{},
	}
	// Passes that nobody has closed.
	for _, old := range slices.Clone(f.passes) {
		if old.tape.Value() == nil {
			old.close()
		}
	}
	for _, u := range f.units {
		u.settle(c) // what another pass has ordered may be from before a step
	}
	f.passes = append(f.passes, p)
	tape.OnClose(p.close)
	return p
}

// enter begins the call of a unit in the forward pass, and returns its place in the trace.
func (p *shardPass) enter(c *nn.Ctx, u *shardUnit) (int, error) {
	first := !slices.ContainsFunc(p.trace, func(e traceEntry) bool { return e.unit == u })
	p.trace = append(p.trace, traceEntry{unit: u, first: first, segment: c.Tape().Segment()})
	i := len(p.trace) - 1
	if err := p.gather(c, u); err != nil {
		return i, err
	}
	if next := p.next(i); next != nil {
		return i, p.order(c, next)
	}
	return i, nil
}

// gather brings the full values of a unit and holds them. Where the shards have been written to
// since they were first gathered in the pass, the gradients would be wrong.
func (p *shardPass) gather(ctx context.Context, u *shardUnit) error {
	version := u.shardVersion()
	if before, ok := p.versions[u]; ok && before != version && p.recording {
		return fmt.Errorf("fsdp: %s have been written to between the forward and the backward pass, so the gradients would be of neither value: step the optimizer after Backward", u.name())
	}
	p.versions[u] = version
	if p.held[u] == 0 {
		u.refresh()
	}
	if err := p.order(ctx, u); err != nil {
		return err
	}
	if err := u.hold(ctx); err != nil {
		return err
	}
	p.held[u]++
	return nil
}

// drop ends a hold of the pass.
func (p *shardPass) drop(u *shardUnit) {
	p.held[u]--
	u.drop()
}

// next returns the unit whose call begins next after entry i, as far as the pass goes as the one
// before; nil if that is not known, or the unit is there.
func (p *shardPass) next(i int) *shardUnit {
	known := p.f.outlines[p.recording]
	if i >= len(known) || known[i].unit != p.trace[i].unit || known[i].ends != p.trace[i].ends {
		return nil
	}
	for _, o := range known[i+1:] {
		if !o.ends {
			if o.unit.here || o.unit.coming != nil {
				return nil
			}
			return o.unit
		}
	}
	return nil
}

// isLast reports whether nothing but ends follows entry i, as far as is known: then the
// backward pass begins with the unit that ends there.
func (p *shardPass) isLast(i int) bool {
	known := p.f.outlines[p.recording]
	if i >= len(known) || known[i].unit != p.trace[i].unit || !known[i].ends {
		return false
	}
	return !slices.ContainsFunc(known[i:], func(o outline) bool { return !o.ends })
}

// leave ends the call of a unit in the forward pass, and returns its place in the trace.
func (p *shardPass) leave(c *nn.Ctx, u *shardUnit) int {
	p.trace = append(p.trace, traceEntry{unit: u, ends: true, segment: c.Tape().Segment()})
	i := len(p.trace) - 1
	switch {
	case p.recording && (u.path == "" || p.f.keep) && !slices.Contains(p.kept, u):
		p.kept = append(p.kept, u)
	case p.recording && p.isLast(i):
		p.trace[i].kept = true
	default:
		if p.recording {
			p.keepPart(u)
		}
		p.drop(u)
	}
	return i
}

// rerun runs the call of a unit for the second time, within what is recomputed in the backward
// pass. All units of what is recomputed are held until the walk has left it.
func (p *shardPass) rerun(c *nn.Ctx, u *shardUnit, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	var err error
	if p.walking {
		if i := p.lastOf(c.Tape().Segment()); i >= 0 {
			err = p.advance(c, i)
		}
	} else { // a walk to single values: see reach
		err = p.gather(c, u)
	}
	if err == nil && p.held[u] == 0 {
		err = fmt.Errorf("fsdp: %s are read by a call that is recomputed and was not made in the forward pass", u.name())
	}
	if err != nil {
		c.Fail(err)
	}
	return next(c, x)
}

// lastOf returns the last entry of a segment, and -1 for none.
func (p *shardPass) lastOf(segment int) int {
	for i, e := range slices.Backward(p.trace) {
		if e.segment == segment {
			return i
		}
	}
	return -1
}

// holdSegment holds the units of a segment to which the walk has come, and drops those of the
// one that it has left. A segment is run again as a whole: in its second run, and in the
// backward pass over that, its calls may read any of them, in an order that the trace does not
// tell where one unit is called several times.
func (p *shardPass) holdSegment(ctx context.Context, segment int) error {
	if segment == p.segment {
		return nil
	}
	for _, u := range p.together {
		p.drop(u)
	}
	p.segment, p.together = segment, nil
	if segment == 0 {
		return nil
	}
	var units []*shardUnit
	for _, e := range slices.Backward(p.trace) {
		if e.segment == segment && !slices.Contains(units, e.unit) {
			units = append(units, e.unit)
		}
	}
	for k, u := range units {
		for _, o := range units[k:min(k+2, len(units))] {
			if err := p.order(ctx, o); err != nil {
				return err
			}
		}
		if err := p.gather(ctx, u); err != nil {
			return err
		}
		p.together = append(p.together, u)
	}
	return nil
}

// wrap returns values whose gradients, on their way back, make the walk of the trace come to
// entry i.
func (p *shardPass) wrap(op string, i int, values []*tensor.Tensor) []*tensor.Tensor {
	if !p.recording {
		return values
	}
	out := slices.Clone(values)
	for k, t := range values {
		if t == nil || !t.NeedsGrad() {
			continue
		}
		out[k] = tensor.Record(op, t.Detach(), []*tensor.Tensor{t}, nil, func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{g}, p.reach(ctx, i)
		})
	}
	return out
}

// begin prepares a backward pass.
func (p *shardPass) begin(context.Context) error {
	f := p.f
	f.types.end()
	if f.failed {
		return errUnfinishedShards
	}
	for _, s := range f.params {
		if s.frozen && !s.param.Frozen {
			return fmt.Errorf("fsdp: %s was frozen when FullyShard was called and is not any more, so it would get no gradient: freeze it after FullyShard, not before, where it is to learn later", s.name)
		}
	}
	for _, rows := range f.rows {
		if err := rows.begin(1 / float64(rows.ranks.group().Size())); err != nil {
			return err
		}
	}
	p.walking, p.at = true, len(p.trace)
	p.pending, p.reduced, p.numSummed = nil, nil, 0
	p.used = make([]int64, (f.numTrained+62)/63)
	return nil
}

// reach is called by the backward pass when it comes to entry i.
func (p *shardPass) reach(ctx context.Context, i int) error {
	if p.walking {
		return p.advance(ctx, i)
	}
	// A walk to single values: see tensor.Tensor.Grad.
	if e := p.trace[i]; e.ends {
		return p.gather(ctx, e.unit)
	}
	return nil
}

// advance walks the trace down to entry i.
func (p *shardPass) advance(ctx context.Context, i int) error {
	for p.at > i {
		e := p.trace[p.at-1]
		if err := p.launch(ctx, func(o traceEntry) bool { return o.segment == 0 || o.segment != e.segment }); err != nil {
			return err
		}
		if err := p.holdSegment(ctx, e.segment); err != nil {
			return err
		}
		p.at--
		u := e.unit
		if e.ends {
			if err := p.gather(ctx, u); err != nil {
				return err
			}
			if e.kept {
				p.trace[p.at].kept = false
				p.drop(u)
			}
			if err := p.prefetch(ctx); err != nil {
				return err
			}
			continue
		}
		p.drop(u)
		if e.first {
			p.forgetPart(u)
			if k := slices.Index(p.kept, u); k >= 0 {
				p.kept = slices.Delete(p.kept, k, k+1)
				p.drop(u)
			}
			p.pending = append(p.pending, e)
		}
	}
	return nil
}

// prefetch begins to gather the unit to which the walk comes next.
func (p *shardPass) prefetch(ctx context.Context) error {
	for _, e := range slices.Backward(p.trace[:p.at]) {
		if e.ends {
			return p.order(ctx, e.unit)
		}
	}
	return nil
}

// launch begins to reduce the units that have all their gradients: those of the entries for which
// complete is true. The leaves of what is recomputed come after all of it.
func (p *shardPass) launch(ctx context.Context, complete func(e traceEntry) bool) error {
	kept := p.pending[:0]
	for _, e := range p.pending {
		if !complete(e) {
			kept = append(kept, e)
			continue
		}
		if !p.sync {
			continue // the whole gradients stay
		}
		// One reduction at a time beside the present one: their memory is used again.
		if err := p.sum(ctx, len(p.reduced)-1); err != nil {
			return err
		}
		e.unit.reduce(ctx, p.used)
		p.reduced = append(p.reduced, e.unit)
	}
	p.pending = kept
	return nil
}

// sum waits for the first n reductions over the ranks that have shards.
func (p *shardPass) sum(ctx context.Context, n int) error {
	for ; p.numSummed < n; p.numSummed++ {
		if err := p.reduced[p.numSummed].scattered(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish ends a backward pass: the walk goes to the beginning of the trace, and the gradients
// are averages when it returns.
func (p *shardPass) finish(ctx context.Context) error {
	f := p.f
	if err := p.advance(ctx, 0); err != nil {
		return err
	}
	if err := p.holdSegment(ctx, 0); err != nil {
		return err
	}
	if err := p.launch(ctx, func(traceEntry) bool { return true }); err != nil {
		return err
	}
	f.outlines[true] = p.outline()
	p.walking = false
	if !p.sync {
		return nil
	}
	return p.average(ctx)
}

// reduce averages the gradients that passes under NoSync have left.
func (f *FSDP) reduce(ctx context.Context) error {
	p := &shardPass{f: f, sync: true, walking: true, used: make([]int64, (f.numTrained+62)/63)}
	var err error
	for _, rows := range f.rows {
		if err == nil {
			err = rows.begin(1 / float64(rows.ranks.group().Size()))
		}
	}
	if err == nil && f.failed {
		err = errUnfinishedShards
	}
	if err == nil {
		err = p.average(ctx)
	}
	if err != nil {
		p.abandon()
	}
	return err
}

// average sums the gradients of the units that have not been reduced in the pass, and gives all
// parameters theirs.
func (p *shardPass) average(ctx context.Context) error {
	f := p.f
	// Units that were not called in this pass, but may have been under NoSync.
	for _, u := range f.units {
		if slices.Contains(p.reduced, u) {
			continue
		}
		if err := p.sum(ctx, len(p.reduced)-1); err != nil {
			return err
		}
		u.reduce(ctx, p.used)
		p.reduced = append(p.reduced, u)
	}
	agreed := f.agree(ctx, p, p.used)
	if err := p.sum(ctx, len(p.reduced)); err != nil {
		return err
	}
	usedByAny, err := agreed()
	if err != nil {
		return err
	}
	for _, u := range p.reduced {
		if err := u.summed(ctx); err != nil {
			return err
		}
		if err := u.deliver(ctx, func(i int) bool { return usedByAny[i/63]>>(i%63)&1 != 0 }); err != nil {
			return err
		}
	}
	for _, rows := range f.rows {
		if err := rows.sum(ctx); err != nil {
			return err
		}
	}
	if f.plan == nil {
		f.late.look(f.world.group())
	}
	f.unused = f.unused[:0]
	for _, s := range f.params {
		if !s.frozen && usedByAny[s.index/63]>>(s.index%63)&1 == 0 {
			f.unused = append(f.unused, s.name)
		}
	}
	return nil
}

func (p *shardPass) outline() []outline {
	o := make([]outline, len(p.trace))
	for i, e := range p.trace {
		o[i] = outline{e.unit, e.ends}
	}
	return o
}

// story is the trace as errors show it, a line for each call of a unit.
func (p *shardPass) story() []byte {
	var b strings.Builder
	for _, e := range p.trace {
		if !e.ends {
			fmt.Fprintln(&b, e.unit.path)
		}
	}
	return []byte(b.String())
}

// agree compares what the ranks have done in a pass: the order in which they have called the
// units. What it returns waits for the others, and then returns the bits of used of all ranks
// together.
func (f *FSDP) agree(ctx context.Context, p *shardPass, used []int64) func() ([]int64, error) {
	story := p.story()
	own := append([]int64{int64(crc32.Checksum(story, crc32.MakeTable(crc32.Castagnoli))), int64(len(story))}, used...)
	world := f.world.group()
	if f.plan != nil {
		f.plan.note(plannedCall{group: world, call: operation.Call{Op: operation.AllGather, DType: operation.Int64, Count: len(own)}})
		return func() ([]int64, error) { return used, nil }
	}
	all := tensor.New(tensor.CPU(), tensor.Int64, world.Size(), len(own))
	mine := tensor.FromInt64(own)
	work := world.AllGatherAsync(ctx, all, mine)
	return func() ([]int64, error) {
		if err := work.Wait(context.WithoutCancel(ctx)); err != nil {
			return nil, fmt.Errorf("fsdp: compare the passes of the ranks: %w", err)
		}
		rows := slices.Collect(slices.Chunk(all.Int64s(), len(own)))
		union := make([]int64, len(used))
		for _, row := range rows {
			for i, bits := range row[2:] {
				union[i] |= bits
			}
		}
		for _, row := range rows {
			if row[0] != rows[0][0] || row[1] != rows[0][1] {
				return nil, f.tellApart(ctx, story)
			}
		}
		return union, nil
	}
}

// tellApart returns how the passes of two ranks differ.
func (f *FSDP) tellApart(ctx context.Context, story []byte) error {
	rank, texts, err := firstDifference(ctx, f.world.group(), story)
	if err != nil {
		return fmt.Errorf("fsdp: compare the passes of the ranks: %w", err)
	}
	theirs := [2][]string{}
	for i, text := range texts {
		theirs[i] = strings.SplitAfter(string(text), "\n")
	}
	call := func(lines []string, i int) string {
		switch {
		case i >= len(lines) || lines[i] == "":
			return "nothing more"
		case lines[i] == "\n":
			return "the model itself"
		}
		return strings.TrimSuffix(lines[i], "\n")
	}
	i := 0
	for i < len(theirs[0]) && i < len(theirs[1]) && theirs[0][i] == theirs[1][i] {
		i++
	}
	return fmt.Errorf("fsdp: the ranks ran different parts of the model in this pass: call %d of a unit was of %s on rank 0 and of %s on rank %d, so the values that they gathered are not those of one unit; "+
		"run the same modules in the same order on every rank", i+1, call(theirs[0], i), call(theirs[1], i), rank)
}

// abandon ends a backward pass that has failed. Nothing writes to the gradients of the
// parameters afterwards.
func (p *shardPass) abandon() {
	if !p.walking && len(p.reduced) == 0 {
		return
	}
	if p.sync {
		p.f.failed = true
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.f.grace)
	defer cancel()
	for _, u := range p.f.units {
		u.abandonGrads(ctx)
	}
	p.close()
}

// close gives up what the pass holds: gathers that nobody came for, and the values of units.
func (p *shardPass) close() {
	f := p.f
	f.passes = slices.DeleteFunc(f.passes, func(o *shardPass) bool { return o == p })
	ctx, cancel := context.WithTimeout(context.Background(), f.grace)
	defer cancel()
	for u, n := range p.held {
		for range n {
			u.drop()
		}
	}
	clear(p.held)
	for _, u := range f.units {
		p.forgetPart(u)
	}
	p.kept, p.trace, p.together, p.segment, p.walking = nil, nil, nil, 0, false
	if len(f.passes) > 0 {
		return // another pass may come for what is on its way
	}
	for _, u := range f.units {
		u.settle(ctx)
	}
}
