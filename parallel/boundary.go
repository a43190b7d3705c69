// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"weak"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// The kinds of values over the axis tp. What a kind says of the value and of its gradient:
//
//	            value                    gradient
//	replicate   whole, on each rank      whole, on each rank
//	copy        whole, on each rank      a part of a sum: each rank has used its copy for its work
//	sequence    this rank's tokens       the same
//	cut         this rank's channels     the same
//	partial     a part of a sum          whole, on each rank
const (
	kindReplicate = "replicate"
	kindCopy      = "copy"
	kindSequence  = "sequence"
	kindCut       = "cut"
	kindPartial   = "partial"
)

// kind gives the placements of a value of n dims, and of its gradient, over tp. The tokens are the
// dim before the last, and the channels the last.
type kind struct{ value, gradient func(n int) mesh.Placement }

var kinds = map[string]kind{
	kindReplicate: {replicated, replicated},
	kindCopy:      {replicated, summed},
	kindSequence:  {alongTokens, alongTokens},
	kindCut:       {alongChannels, alongChannels},
	kindPartial:   {summed, replicated},
}

func replicated(int) mesh.Placement      { return mesh.Replicate() }
func summed(int) mesh.Placement          { return mesh.Partial(dist.Sum) }
func alongTokens(n int) mesh.Placement   { return mesh.Shard(n - 2) }
func alongChannels(n int) mesh.Placement { return mesh.Shard(n - 1) }

// kindNames returns the kinds in the order of the alphabet.
func kindNames() []string {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// boundary is a place in a pass where a value gets another kind: where a module with a style
// begins or ends.
type boundary struct {
	who      string // in errors: "column parallel h.0.attn.c_attn"
	from, to string // kinds
	again    bool   // a whole sequence may be gathered again for the backward pass; see before
}

// cross takes a value over a boundary. Its gradient goes back over it. A value that is no float
// has no channels: its last dim is the tokens.
func (t *tensorParallel) cross(c *nn.Ctx, b boundary, x *tensor.Tensor) *tensor.Tensor {
	b.from, b.to = t.now(c, b.from), t.now(c, b.to)
	if x == nil || b.from == b.to {
		return x
	}
	pass := t.passOf(c.Tape())
	if !x.DType().IsFloat() {
		return t.crossTokens(c, pass, b, x)
	}
	n := x.NumDims()
	if n == 0 || n == 1 && (b.from == kindSequence || b.to == kindSequence) {
		c.Fail(fmt.Errorf("tensor parallel: %s: a value of shape %v has no tokens to share: it wants [..., time, width]", b.who, x.Shape()))
	}
	if !c.Tape().Recording() {
		whole := pass.wholeOf(c, b, x)
		y := t.moved(c, b, x, whole, kinds[b.from].value(n), kinds[b.to].value(n))
		if b.to == kindCut {
			pass.hasMade(y, whole[n-1])
		}
		return y
	}
	key := crossing{x, b.to, c.Tape().Segment(), c.Recomputing()}
	if y := pass.crossed[key]; y != nil {
		if g := pass.gathered[y]; g != nil {
			pass.bring(c, g)
		}
		return y
	}
	if !c.Recomputing() { // the backward pass is under way then, and has freed what it was done with
		pass.giveUp()
	}
	whole := pass.wholeOf(c, b, x)
	y := t.moved(c, b, x, whole, kinds[b.from].value(n), kinds[b.to].value(n))
	if y == x {
		y = x.Detach()
	}
	t.give(c, b, x, y)
	var saves []*tensor.Tensor
	if b.again {
		saves = []*tensor.Tensor{x}
	}
	y = tensor.Record("tensor parallel", y, []*tensor.Tensor{x}, saves, func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		dx, err := t.move(ctx, g, whole, kinds[b.to].gradient(n), kinds[b.from].gradient(n))
		if err != nil {
			return nil, fmt.Errorf("tensor parallel: gradient of %s: %w", b.who, err)
		}
		return []*tensor.Tensor{dx}, nil
	})
	pass.crossed[key] = y
	if b.to == kindCut {
		pass.hasMade(y, whole[n-1])
	}
	if b.again && b.from == kindSequence && b.to == kindCopy && !t.config.KeepGathered && c.Tape().Segment() == 0 {
		g := &gathered{b: b, x: x.Untracked(), y: y.Untracked(), whole: whole}
		pass.gathered[y] = g
		pass.there = append(pass.there, g)
	}
	return y
}

// gathered is a whole sequence that linear layers take. Its memory is given up after the layers,
// and it is gathered again when the backward pass comes to them.
type gathered struct {
	b     boundary
	x, y  *tensor.Tensor // this rank's part, and the whole
	whole []int
}

// giveUp gives up the memory of whole sequences: what comes in the pass does not need them.
func (p *tensorPass) giveUp() {
	for _, g := range p.there {
		g.y.Release()
	}
	p.there = p.there[:0]
}

// bring gathers a whole sequence again in a forward pass: another layer takes it too.
func (p *tensorPass) bring(c *nn.Ctx, g *gathered) {
	if !g.y.IsReleased() {
		return
	}
	if err := p.t.gatherAgain(c, g); err != nil {
		c.Fail(err)
	}
	p.there = append(p.there, g)
}

func (t *tensorParallel) gatherAgain(ctx context.Context, g *gathered) error {
	err := g.y.Restore(func(y *tensor.Tensor) error {
		n := y.NumDims()
		x, err := t.move(ctx, g.x, g.whole, kinds[g.b.from].value(n), kinds[g.b.to].value(n))
		if err == nil && y.Device() != tensor.Meta {
			y.CopyFrom(x)
			x.Free()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("tensor parallel: gather again for %s: %w", g.b.who, err)
	}
	return nil
}

// before has a whole sequence gathered again when the backward pass comes to the result of a
// layer that has taken it. Within calls that are recomputed nothing is given up: what they have
// made is there for a short time only.
func (t *tensorParallel) before(pass *tensorPass, x, y *tensor.Tensor) *tensor.Tensor {
	g := pass.gathered[x]
	if g == nil || !y.NeedsGrad() {
		return y
	}
	return tensor.Record("tensor parallel", y.Detach(), []*tensor.Tensor{y}, nil, func(ctx context.Context, grad *tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{grad}, t.gatherAgain(ctx, g)
	})
}

// crossing is what makes two values that cross boundaries the same. A call that is recomputed
// has values of its own in its second run.
type crossing struct {
	x       *tensor.Tensor
	to      string
	segment int
	again   bool
}

// crossTokens takes ids over a boundary: every rank has all, and takes those of its tokens. A dim
// of one token stands for all tokens.
func (t *tensorParallel) crossTokens(c *nn.Ctx, pass *tensorPass, b boundary, x *tensor.Tensor) *tensor.Tensor {
	if b.to != kindSequence || x.NumDims() == 0 || x.Dim(-1) == 1 {
		return x
	}
	pass.share(c, b, x.Dim(-1))
	first, n := t.part(x.Dim(-1))
	y, last := x.Narrow(-1, first, n).Contiguous(), mesh.Shard(x.NumDims()-1)
	t.giveAs(c, b.who, x, y, mesh.Replicate(), last, last, mesh.Replicate())
	return y
}

// moved is move in a forward pass.
func (t *tensorParallel) moved(c *nn.Ctx, b boundary, x *tensor.Tensor, whole []int, from, to mesh.Placement) *tensor.Tensor {
	y, err := t.move(c, x, whole, from, to)
	if err != nil {
		c.Fail(fmt.Errorf("tensor parallel: %s: %w", b.who, err))
	}
	return y
}

// move spreads a value of a whole shape anew over tp. Where nothing changes the result is x, and
// else it is under the tape of x. Of a value on tensor.Meta there is only the shape.
func (t *tensorParallel) move(ctx context.Context, x *tensor.Tensor, whole []int, from, to mesh.Placement) (*tensor.Tensor, error) {
	if from == to {
		return x, nil
	}
	value := mesh.Tensor{Local: x.Untracked(), Layout: mesh.Layout{Mesh: t.mesh, Shape: whole, Placements: []mesh.Placement{from}}}
	var y *tensor.Tensor
	if x.Device() == tensor.Meta {
		shape, err := mesh.LocalShape(whole, []int{t.size}, []mesh.Placement{to}, []int{t.rank})
		if err != nil {
			return nil, err
		}
		y = tensor.New(tensor.Meta, x.DType(), shape...)
	} else {
		out, err := value.Redistribute(ctx, to)
		if err != nil {
			return nil, err
		}
		y = out.Local
	}
	t.count(whole, x.DType(), from, to)
	if x.Tape() == nil {
		return y, nil
	}
	return x.Tape().Adopt(y), nil
}

// part returns which of n elements this rank has.
func (t *tensorParallel) part(n int) (first, length int) { return t.partOf(t.rank, n) }

func (t *tensorParallel) partOf(rank, n int) (first, length int) {
	boxes, err := mesh.Boxes([]int{n}, []int{t.size}, []mesh.Placement{mesh.Shard(0)}, []int{rank})
	if err != nil || len(boxes) == 0 {
		return n, 0
	}
	return boxes[0].Start[0], boxes[0].Shape[0]
}

// tensorPass is what the axis tp knows of one pass.
type tensorPass struct {
	t        *tensorParallel
	crossed  map[crossing]*tensor.Tensor
	tokens   []int                                   // how many tokens sequences have that ranks share
	classes  int                                     // of the logits that were left cut, 0 for none
	gathered map[*tensor.Tensor]*gathered            // by the whole sequence
	there    []*gathered                             // that have their memory
	coming   map[crossing]func(i int) *tensor.Tensor // pieces of whole sequences
	inHeads  int                                     // calls of attention modules under way that ranks share by heads
	made     map[weak.Pointer[tensor.Tensor]]int     // how many channels the ranks have together of a value that is cut
	newest   int                                     // those of the last one
}

// passOf returns the pass over a tape, and makes it at first.
func (t *tensorParallel) passOf(tape *tensor.Tape) *tensorPass {
	if p := t.passes[tape]; p != nil {
		return p
	}
	p := &tensorPass{t: t, crossed: map[crossing]*tensor.Tensor{}, gathered: map[*tensor.Tensor]*gathered{}, coming: map[crossing]func(i int) *tensor.Tensor{}, made: map[weak.Pointer[tensor.Tensor]]int{}}
	t.passes[tape] = p
	tape.BeforeBackward(func(context.Context) error {
		p.there = nil // the backward pass frees what it has used
		return nil
	})
	tape.OnClose(func() { delete(t.passes, tape) })
	return p
}

// share notes that a sequence of n tokens is shared by the ranks.
func (p *tensorPass) share(c *nn.Ctx, b boundary, n int) {
	if _, last := p.t.partOf(p.t.size-1, n); last == 0 {
		_, each := p.t.partOf(0, n)
		c.Fail(fmt.Errorf("tensor parallel: %s: the %d ranks of axis tp share the sequence, and the last has none of its %d tokens: %d ranks of %d tokens have all: use longer sequences, or set TPConfig.WholeSequence",
			b.who, p.t.size, n, (n+max(each, 1)-1)/max(each, 1), each))
	}
	if !slices.Contains(p.tokens, n) {
		p.tokens = append(p.tokens, n)
	}
}

// wholeOf returns the shape of the value of which x is this rank's part.
func (p *tensorPass) wholeOf(c *nn.Ctx, b boundary, x *tensor.Tensor) []int {
	whole := slices.Clone(x.Shape())
	n := len(whole)
	switch b.from {
	case kindSequence:
		whole[n-2] = p.among(c, b, "tokens", whole[n-2], p.tokens)
	case kindCut:
		whole[n-1] = p.channelsOf(c, b, x)
	}
	switch b.to {
	case kindSequence:
		p.share(c, b, whole[n-2])
	}
	return whole
}

// hasMade notes of a value that is cut how many channels the ranks have of it together. The pass
// does not keep the value.
func (p *tensorPass) hasMade(x *tensor.Tensor, channels int) {
	p.made[weak.Make(x)], p.newest = channels, channels
}

// channelsOf returns how many channels the ranks have together of a value that is cut. What made
// the value has told. Of what is computed from such a value, it is one of the sizes that the plan
// cuts.
func (p *tensorPass) channelsOf(c *nn.Ctx, b boundary, x *tensor.Tensor) int {
	if n, known := p.made[weak.Make(x)]; known {
		return n
	}
	return p.among(c, b, "channels", x.Dim(-1), p.t.widths)
}

// among returns of how many elements a rank has local ones: of one of the numbers that are known.
// All ranks come to the same answer. Where some rank could not tell, the channels are those of the
// value that was cut last; a rank whose part that is not fails, so that no wrong answer stands.
func (p *tensorPass) among(c *nn.Ctx, b boundary, what string, local int, known []int) int {
	t := p.t
	found := -1
	for _, n := range known {
		if _, length := t.part(n); length == local {
			found = n
			break
		}
	}
	if found < 0 {
		if what == "tokens" {
			c.Fail(fmt.Errorf("tensor parallel: %s: %d tokens are no rank's part of a sequence of the pass, which have %v: the value is not cut along its sequence: say how it lies by from", b.who, local, known))
		}
		return local * t.size
	}
	for _, n := range known {
		for r := range t.size {
			_, one := t.partOf(r, n)
			_, other := t.partOf(r, found)
			if n != found && one == other {
				if _, newest := t.part(p.newest); what == "channels" && newest == local {
					return p.newest
				}
				c.Fail(fmt.Errorf("tensor parallel: %s: %d %s on a rank can be a part of %d or of %d: pad one of them to a multiple of %d", b.who, one, what, found, n, t.size))
			}
		}
	}
	return found
}

// give tells the check of sharding types of a boundary that x has crossed as y.
func (t *tensorParallel) give(c *nn.Ctx, b boundary, x, y *tensor.Tensor) {
	t.giveAs(c, b.who, x, y, kinds[b.from].value(x.NumDims()), kinds[b.to].value(y.NumDims()), kinds[b.to].gradient(y.NumDims()), kinds[b.from].gradient(x.NumDims()))
}

// giveAs says that x lies so over tp and y so, and their gradients; what is on the other axes
// stays.
func (t *tensorParallel) giveAs(c *nn.Ctx, who string, x, y *tensor.Tensor, from, to, takes, gives mesh.Placement) {
	pass := sharding.Of(c.Tape())
	tp := slices.IndexFunc(pass.Axes(), func(a sharding.Axis) bool { return a.Name == t.axis() })
	if tp < 0 {
		return
	}
	at := pass.TypeOf(x)
	with := func(base sharding.Type, p mesh.Placement) sharding.Type {
		base = slices.Clone(base)
		base[tp] = p
		return base
	}
	pass.Take(who, x, with(at, from))
	gradient := slices.Clone(at)
	for i, p := range at {
		if p.IsReplicate() {
			gradient[i] = mesh.Partial(dist.Sum) // over the samples
		}
	}
	pass.Give(y, sharding.Boundary{Type: with(at, to), GradTakes: with(gradient, takes), GradGives: with(gradient, gives)})
}

// traffic is what the axis tp has sent: the bytes of all redistributions, by what they are.
type traffic map[string]int64

func (t *tensorParallel) count(whole []int, dtype tensor.DType, from, to mesh.Placement) {
	plan, err := mesh.NewPlan(whole, []int{t.size}, []mesh.Placement{from}, []mesh.Placement{to}, true)
	if err != nil {
		return
	}
	t.sent[fmt.Sprintf("%v to %v", from, to)] += plan.NumElemsOf(t.rank) * int64(dtype.Size())
}

// total returns all bytes.
func (s traffic) total() int64 {
	var n int64
	for _, b := range s {
		n += b
	}
	return n
}

// String lists the bytes.
func (s traffic) String() string {
	var lines []string
	for what, n := range s {
		lines = append(lines, fmt.Sprintf("%s: %d", what, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// note remembers how long a sequence of the pass is.
func (p *tensorPass) note(n int) {
	if n >= p.t.size && !slices.Contains(p.tokens, n) {
		p.tokens = append(p.tokens, n)
	}
}
