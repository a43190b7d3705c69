// SPDX-License-Identifier: Apache-2.0

package collective

import "fmt"
import (
	"github.com/cohort-ml/cohort/dist/operation"
)

const (
	// maxPeers is the largest group in which an algorithm may connect each rank with each
	// other one.
	maxPeers = 64
	// maxExact is the largest group without levels in which elements of 16 bits are summed
	// all at once in float32, and rounded once.
	maxExact = 16
	// orderWorth is by which part of its cost an algorithm may cost more if it reduces in
	// the order of ranks.
	orderWorth = 16
	// maxGathered is the most bytes that a rank gathers to reduce or to sort them by
	// itself.
	maxGathered = 4 << 20
)

// problem is a call as the choice of its algorithm sees it. The choice depends only on what
// is the same on all ranks.
type problem struct {
	c       *operation.Call
	rank, n int
	piece   int // elements
	align   int
	bytes   int64 // all_to_all: that each rank sends; else of the whole vector
	total   int   // elements of the whole vector
	starts  []int // of uneven parts
	layout  *layout
	costs   Costs
	exact   bool // to be reduced all at once, in the order of ranks
	strict  bool // whatever it costs
	idle    bool // nothing is to be moved: all need only to come
}

// algorithm is a way to serve an operation.
type algorithm struct {
	name string
	fits func(p *problem) bool // nil: always
	cost func(p *problem) int64
	add  func(p *problem, b *builder)
	// exact says that the algorithm reduces the contributions of all ranks at once, in
	// their order.
	exact bool
}

// PlanFor returns a rank's part in a collective, by the algorithm that costs least by
// [DefaultCosts]. Backends run the plan, unless they have a quicker way to serve the
// operation.
func PlanFor(c *operation.Call, rank int, t Topology, o Options) (Plan, error) {
	p, err := problemFor(c, rank, layoutFor(t), o)
	if err != nil {
		return Plan{}, err
	}
	best, why := p.choose()
	if best == nil {
		return Plan{}, fmt.Errorf("dist: no collective %v", c)
	}
	plan := p.plan(best)
	plan.Why = why
	return plan, nil
}

func problemFor(c *operation.Call, rank int, l *layout, o Options) (*problem, error) {
	p := &problem{c: c, rank: rank, n: len(l.node), layout: l, costs: DefaultCosts()}
	if p.idle = c.Empty(); p.idle {
		return p, nil
	}
	size := c.DType.Size()
	if size == 0 {
		return nil, fmt.Errorf("dist: %v: no such element type", c)
	}
	p.piece, p.align = PieceBytes/size, max(1, shareAlign/size)
	p.total = c.Count
	switch c.Op {
	case operation.AllGather, operation.ReduceScatter:
		p.starts = startsOf(c.Parts)
		p.total = p.block(p.n - 1).Hi
	case operation.Gather, operation.Scatter:
		if c.Root == rank {
			p.starts = startsOf(c.Parts)
		}
		p.total = p.n * c.Count
	case operation.AllToAll:
		p.total = p.n * c.Count
	}
	p.bytes = int64(p.total) * int64(size)
	if p.idle = c.Layout > operation.LayoutEven && p.total == 0; p.idle {
		return p, nil
	}
	if c.Op.Reduces() {
		p.strict = o.Deterministic
		half := c.DType == operation.BFloat16 || c.DType == operation.Float16
		p.exact = p.strict || half && p.n <= maxExact && !p.layout.levels()
	}
	return p, nil
}

// startsOf returns where each part begins, and the end; nil for even parts.
func startsOf(parts []int) []int {
	if parts == nil {
		return nil
	}
	starts := make([]int, len(parts)+1)
	for i, n := range parts {
		starts[i+1] = starts[i] + n
	}
	return starts
}

// block returns the elements of a rank in the whole vector.
func (p *problem) block(rank int) Range { return blockOf(p.starts, rank, p.c.Count) }

func blockOf(starts []int, i, count int) Range {
	if starts == nil {
		return Range{i * count, (i + 1) * count}
	}
	return Range{starts[i], starts[i+1]}
}

// choose returns the algorithm that costs least, and why. An algorithm that reduces in the
// order of ranks may cost a little more, for its sums have the same bits as those of ranks
// that share memory.
func (p *problem) choose() (best *algorithm, why string) {
	var second *algorithm
	worth := func(a *algorithm) int64 {
		cost := a.cost(p)
		if a.exact && !p.exact {
			cost -= cost / orderWorth
		}
		return cost
	}
	var least, next int64
	for i := range p.table() {
		a := &p.table()[i]
		if !p.allows(a) {
			continue
		}
		switch cost := worth(a); {
		case best == nil || cost < least:
			second, next = best, least
			best, least = a, cost
		case second == nil || cost < next:
			second, next = a, cost
		}
	}
	if best == nil {
		return nil, ""
	}
	why = fmt.Sprintf("%s: estimated %s", best.name, duration(best.cost(p)))
	if second != nil {
		why += fmt.Sprintf("; %s %s", second.name, duration(second.cost(p)))
	}
	switch {
	case p.strict:
		why += "; in the order of ranks, as asked for"
	case p.exact:
		why += "; 16-bit elements are summed in float32 and rounded once"
	}
	return best, why
}

// duration formats picoseconds.
func duration(t int64) string {
	switch {
	case t < 1000*microsecond:
		return fmt.Sprintf("%.1f µs", float64(t)/microsecond)
	case t < 1000*1000*microsecond:
		return fmt.Sprintf("%.1f ms", float64(t)/(1000*microsecond))
	}
	return fmt.Sprintf("%.1f s", float64(t)/(1000*1000*microsecond))
}

// allows reports whether an algorithm may serve the problem.
func (p *problem) allows(a *algorithm) bool {
	return (a.exact || !p.exact) && (a.fits == nil || a.fits(p))
}

// table returns the algorithms of the problem's operation.
func (p *problem) table() []algorithm {
	if p.idle {
		return tables[operation.Barrier]
	}
	if int(p.c.Op) < len(tables) {
		return tables[p.c.Op]
	}
	return nil
}

// plan makes the rank's plan by an algorithm.
func (p *problem) plan(a *algorithm) Plan {
	b := &builder{piece: p.piece, whole: true, finish: true}
	b.Algorithm = a.name
	if !p.idle {
		b.NumOut, b.NumIn = p.regions()
	}
	a.add(p, b)
	return b.Plan
}

// regions returns how many elements output and input have.
func (p *problem) regions() (out, in int) {
	c, root := p.c, p.c.Root == p.rank
	switch c.Op {
	case operation.Reduce:
		if !root {
			return 0, c.Count
		}
	case operation.AllGather:
		return p.total, p.block(p.rank).Len()
	case operation.ReduceScatter:
		return p.block(p.rank).Len(), p.total
	case operation.Gather:
		if root {
			return p.block(p.n - 1).Hi, p.block(p.rank).Len()
		}
		return 0, c.Count
	case operation.Scatter:
		if root {
			return p.block(p.rank).Len(), p.block(p.n - 1).Hi
		}
		return c.Count, 0
	case operation.AllToAll:
		return blockOf(startsOf(c.Recvs), p.n-1, c.Count).Hi, blockOf(startsOf(c.Parts), p.n-1, c.Count).Hi
	}
	return c.Count, 0
}

// arms returns the links between all ranks.
func (p *problem) arms() arms {
	a := arms{Costs: p.costs, n: p.n, far: p.costs.Local, near: p.costs.Local, here: p.n, nodes: 1}
	if len(p.layout.nodes) > 1 {
		l := p.layout
		// Of a node's ranks, no more talk to others at once than there are others.
		a.near, a.far, a.here = p.costs.Net, p.costs.Net.shared(min(l.most, p.n-l.most)), 1
		if a.nodes = len(l.nodes); l.even() && powerOfTwo(l.most) {
			a.here = l.most
		}
	}
	return a
}

// mates and peers return the links within a node, and between nodes of which
// users ranks each talk.
func (p *problem) mates() arms {
	return arms{Costs: p.costs, n: p.layout.most, far: p.costs.Local, near: p.costs.Local, here: p.layout.most, nodes: 1}
}

func (p *problem) peers(users int) arms {
	l := p.costs.Net.shared(users)
	return arms{Costs: p.costs, n: len(p.layout.nodes), far: l, near: l, here: 1, nodes: len(p.layout.nodes)}
}

// all is the team of all ranks in their order, ordered that by nodes.
func (p *problem) all() team     { return team{n: p.n, me: p.rank} }
func (p *problem) ordered() team { return p.layout.byNode(p.rank) }

// rooted is all ranks by nodes: from the root's on, whose ranks begin with it.
func (p *problem) rooted() team {
	l := p.layout
	if l.most == 1 {
		return p.all().from(p.c.Root)
	}
	t := team{n: p.n}
	for i := range l.nodes {
		ranks := l.nodes[mod(l.node[p.c.Root]+i, len(l.nodes))]
		first := 0
		if i == 0 {
			first = l.local[p.c.Root]
		}
		for j := range ranks {
			r := ranks[mod(first+j, len(ranks))]
			if r == p.rank {
				t.me = len(t.ranks)
			}
			t.ranks = append(t.ranks, r)
		}
	}
	return t
}

// Alone runs a collective of a group of one rank.
func Alone(c *operation.Call, in, out Data) error {
	if c.Op.Reduces() {
		reduce, err := ReductionFor(c.Reduce, c.DType, 1)
		if err != nil {
			return err
		}
		// What the one rank contributes is the result.
		reduce.Prepare(out.Bytes(), in.Bytes())
		return nil
	}
	copy(out.Bytes(), in.Bytes())
	return nil
}
