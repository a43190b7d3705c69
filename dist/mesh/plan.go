// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"strings"
)

// StepKind is what a [Step] does.
type StepKind uint8

// The kinds of steps.
const (
	StepLocal         StepKind = iota // each rank changes its own part, and nothing is sent
	StepAllGather                     // the ranks of an axis give each other their chunks
	StepAllToAll                      // each rank gives each other rank what that one needs
	StepReduceScatter                 // the ranks of an axis reduce, and each keeps a chunk
	StepAllReduce                     // the ranks of an axis reduce, and each keeps all
)

func (k StepKind) String() string {
	return [...]string{"local", "all-gather", "all-to-all", "reduce-scatter", "all-reduce"}[k]
}

// Step is one step of a redistribution. It changes the placements From into To.
type Step struct {
	Kind     StepKind
	Axis     int // whose ranks communicate, -1 if all ranks of the mesh do
	From, To []Placement
	// NumElems is how many elements all ranks together send to each other.
	NumElems int64
}

// Plan is how a tensor gets from one layout to another.
type Plan struct {
	Steps []Step

	shape, meshShape []int
}

// NewPlan returns the steps that take a tensor of the global shape on a mesh of meshShape from
// the placements from to the placements to, with the fewest bytes sent by all ranks together. Of
// plans with equally many bytes it takes that with the fewest steps that communicate, and of
// these the one whose steps have the fewest ranks. A step changes one axis and communicates
// along it, or changes several axes and communicates among all ranks of the mesh. withWorld says
// whether the latter is possible, because the ranks of the mesh have a group.
//
// NewPlan is a pure function: every rank gets the same plan. It fails if a placement is wrong,
// and if there is no way, as for a varying value, which is no part of a larger one.
func NewPlan(shape, meshShape []int, from, to []Placement, withWorld bool) (*Plan, error) {
	for _, placements := range [][]Placement{from, to} {
		if err := Check(shape, meshShape, placements); err != nil {
			return nil, err
		}
	}
	for a := range from {
		if from[a] == to[a] || from[a].kind != varying && (to[a].kind != varying || from[a].kind == replicate) {
			continue
		}
		return nil, fmt.Errorf("mesh: from %v to %v on axis %d: the value of each rank of a varying axis is its own and no part of a larger one; state a layout that says how the ranks' values belong together", from[a], to[a], a)
	}
	s := newSearch(shape, meshShape, from, to, withWorld)
	steps := s.run()
	if steps == nil {
		return nil, fmt.Errorf("mesh: there is no way from %v to %v for a tensor of shape %v on a mesh of shape %v", from, to, shape, meshShape)
	}
	return &Plan{Steps: steps, shape: slices.Clone(shape), meshShape: slices.Clone(meshShape)}, nil
}

// NumElems returns how many elements all ranks together send to each other.
func (p *Plan) NumElems() int64 {
	n := int64(0)
	for _, s := range p.Steps {
		n += s.NumElems
	}
	return n
}

// NumElemsOf returns how many elements the rank with the given number in the mesh sends to
// other ranks. It counts each element once for each rank that needs it. An all-reduce counts as a
// reduce-scatter and an all-gather. In a ring the ranks share the sending in another way, and all
// together send as much. Of an all-reduce of few elements package dist may send more, in fewer
// rounds.
func (p *Plan) NumElemsOf(rank int) int64 {
	at := coordinateOf(p.meshShape, rank)
	n := int64(0)
	for i := range p.Steps {
		n += p.Steps[i].sentBy(p.shape, p.meshShape, at)
	}
	return n
}

// String returns the plan with a step in each line.
func (p *Plan) String() string {
	var b strings.Builder
	for _, s := range p.Steps {
		over := "all ranks"
		if s.Axis >= 0 {
			over = fmt.Sprintf("axis %d", s.Axis)
		}
		if s.Kind == StepLocal {
			over = "each rank"
		}
		fmt.Fprintf(&b, "%v over %s: %v to %v, %d elements\n", s.Kind, over, s.From, s.To, s.NumElems)
	}
	return b.String()
}

// sentBy returns how many elements the rank at a coordinate sends in the step.
func (s *Step) sentBy(shape, meshShape, at []int) int64 {
	from, _ := cutsOf(shape, meshShape, s.From)
	to, _ := cutsOf(shape, meshShape, s.To)
	have := spansAt(shape, from, at)
	size := numElems(have)
	switch s.Kind {
	case StepAllReduce:
		n := meshShape[s.Axis]
		_, own := chunk(int(size), n, at[s.Axis])
		return size - int64(own) + int64(own)*int64(n-1)
	case StepReduceScatter:
		return size - numElems(spansAt(shape, to, at))
	case StepAllGather, StepAllToAll:
		n := int64(0)
		for _, peer := range peersOf(meshShape, at, s.Axis) {
			if !slices.Equal(peer, at) && s.isSource(at, peer) {
				n += numElemsCommon(have, spansAt(shape, to, peer))
			}
		}
		return n
	}
	return 0
}

// isSource reports whether the rank at coordinate from sends to the one at to what it has and
// that one needs. Of the ranks that hold the same elements it is the one in the receiver's row.
func (s *Step) isSource(from, to []int) bool {
	for a, p := range s.From {
		if p.kind != shard && from[a] != to[a] {
			return false
		}
	}
	return true
}

// peersOf returns the coordinates of the ranks that communicate with the one at a coordinate:
// those along an axis, or all if the axis is -1.
func peersOf(meshShape, at []int, axis int) [][]int {
	if axis < 0 {
		size := 1
		for _, n := range meshShape {
			size *= n
		}
		peers := make([][]int, size)
		for r := range peers {
			peers[r] = coordinateOf(meshShape, r)
		}
		return peers
	}
	peers := make([][]int, meshShape[axis])
	for i := range peers {
		peers[i] = slices.Clone(at)
		peers[i][axis] = i
	}
	return peers
}

func numElems(spans [][]span) int64 {
	n := int64(1)
	for _, ss := range spans {
		length := 0
		for _, s := range ss {
			length += s.length
		}
		n *= int64(length)
	}
	return n
}

// numElemsCommon returns how many elements two ranks' parts have in common.
func numElemsCommon(a, b [][]span) int64 {
	n := int64(1)
	for d := range a {
		length := 0
		for _, c := range common(a[d], b[d]) {
			length += c.length
		}
		n *= int64(length)
	}
	return n
}

// stretch is what two ranks both hold of a dim without gaps: where it begins in the one's local
// tensor, and where in the other's.
type stretch struct {
	a, b, length int
}

// common returns what two lists of spans have in common, in order. Both are in ascending order.
func common(a, b []span) []stretch {
	var out []stretch
	for len(a) > 0 && len(b) > 0 {
		start := max(a[0].start, b[0].start)
		endA, endB := a[0].start+a[0].length, b[0].start+b[0].length
		if end := min(endA, endB); end > start {
			out = append(out, stretch{a[0].local + start - a[0].start, b[0].local + start - b[0].start, end - start})
		}
		if endA <= endB {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// cost is what a plan is chosen by, in the order of the fields.
type cost struct {
	numElems int64
	numSteps int // that communicate
	numRanks int // of the groups of the steps
	all      int // steps
}

func (c cost) compare(d cost) int {
	return cmp.Or(cmp.Compare(c.numElems, d.numElems), cmp.Compare(c.numSteps, d.numSteps), cmp.Compare(c.numRanks, d.numRanks), cmp.Compare(c.all, d.all))
}

func (c cost) plus(s *Step, meshShape []int) cost {
	c.all++
	c.numElems += s.NumElems
	if s.Kind == StepLocal {
		return c
	}
	c.numSteps++
	ranks := 1
	for a, n := range meshShape {
		if s.Axis < 0 || s.Axis == a {
			ranks *= n
		}
	}
	c.numRanks += ranks
	return c
}

// maxStates is how many combinations of placements a search takes into account with all dims.
// Beyond, it leaves out dims that neither end of the way cuts, and beyond its square all dims that
// an axis does not cut at an end.
const maxStates = 400

// maxLooked is the largest mesh whose ranks haveAll looks at.
const maxLooked = 16

// search is Dijkstra's algorithm over the combinations of placements.
type search struct {
	shape, meshShape []int
	from, to         []Placement
	withWorld        bool
	choices          [][]Placement // by axis
	numRanks         int
	everywhere       bool     // an exchange among all ranks may lead to any state
	states           []*state // that are valid
	all              []*state // by number; nil for those that are not valid
	queue            queue
}

// state is a combination of placements.
type state struct {
	placements []Placement
	cuts       [][]cut
	best       cost
	reached    bool
	done       bool
	step       *Step // the last one on the best way here
	before     *state
	number     int
	place      int // in the queue
}

func newSearch(shape, meshShape []int, from, to []Placement, withWorld bool) *search {
	s := &search{shape: shape, meshShape: meshShape, from: from, to: to, withWorld: withWorld}
	numAll := s.choose(func(int) bool { return true })
	if numAll > maxStates {
		numAll = s.choose(func(d int) bool { return d == 0 || s.cutsDim(d) })
	}
	if numAll > maxStates*maxStates {
		numAll = s.choose(func(int) bool { return false })
	}
	s.all = make([]*state, numAll)
	s.numRanks = 1
	for _, n := range meshShape {
		s.numRanks *= n
	}
	numStates := s.enumerate()
	s.everywhere = s.numRanks <= 64 && numStates <= 100
	return s
}

// choose lists the placements that each axis may have on the way, and returns the number of
// combinations. On the way axes may cut the dims that mayCut admits.
func (s *search) choose(mayCut func(dim int) bool) int {
	numStates := 1
	s.choices = nil
	for a := range s.from {
		choices := []Placement{s.from[a]}
		add := func(p Placement) {
			if !slices.Contains(choices, p) {
				choices = append(choices, p)
			}
		}
		add(s.to[a])
		if s.from[a].kind != varying {
			add(Replicate())
			for d := range s.shape {
				if mayCut(d) {
					add(Shard(d))
				}
			}
		}
		s.choices = append(s.choices, choices)
		numStates = min(numStates*len(choices), 1<<30)
	}
	return numStates
}

// cutsDim reports whether either end of the way cuts a dim.
func (s *search) cutsDim(d int) bool {
	isCut := func(p Placement) bool { return p.kind == shard && p.dim == d }
	return slices.ContainsFunc(s.from, isCut) || slices.ContainsFunc(s.to, isCut)
}

// enumerate makes the states that are valid, and returns how many there are.
func (s *search) enumerate() int {
	placements := make([]Placement, len(s.from))
	var fill func(a int)
	fill = func(a int) {
		if a < len(placements) {
			for _, p := range s.choices[a] {
				placements[a] = p
				fill(a + 1)
			}
			return
		}
		cuts, err := cutsOf(s.shape, s.meshShape, placements)
		if err != nil {
			return
		}
		st := &state{placements: slices.Clone(placements), cuts: cuts, number: len(s.states)}
		s.states = append(s.states, st)
		s.all[s.number(placements)] = st
	}
	fill(0)
	return len(s.states)
}

// number returns the place of a combination in all.
func (s *search) number(placements []Placement) int {
	number := 0
	for a, p := range placements {
		i := slices.Index(s.choices[a], p)
		if i < 0 {
			return -1
		}
		number = number*len(s.choices[a]) + i
	}
	return number
}

// at returns the state with the given placements, nil if they are not valid.
func (s *search) at(placements []Placement) *state {
	if number := s.number(placements); number >= 0 {
		return s.all[number]
	}
	return nil
}

// run returns the best steps, nil if there is no way.
func (s *search) run() []Step {
	begin, end := s.at(s.from), s.at(s.to)
	if step := s.direct(begin, end); step != nil {
		return []Step{*step}
	}
	begin.reached = true
	heap.Push(&s.queue, begin)
	for s.queue.Len() > 0 {
		at := heap.Pop(&s.queue).(*state)
		at.done = true
		if at == end {
			steps := []Step{}
			for ; at.before != nil; at = at.before {
				steps = append(steps, *at.step)
			}
			slices.Reverse(steps)
			return steps
		}
		s.leave(at)
	}
	return nil
}

// direct returns the one step that is the best way where no reduction is owed, nil if there is
// none: a rank cannot receive less than what it needs and has not. If a reduction is owed, it may
// be better to pay it off on the way, even if it is owed again at the end.
func (s *search) direct(begin, end *state) *Step {
	if begin == end || !sameOwed(s.from, s.to) || s.owes(s.from) {
		return nil
	}
	differs := -1
	for a := range s.from {
		if s.from[a] != s.to[a] {
			if differs >= 0 {
				differs = len(s.from)
				break
			}
			differs = a
		}
	}
	if differs < len(s.from) {
		if step := s.along(begin, end, differs); step != nil {
			return step
		}
	}
	if s.withWorld {
		return s.exchange(begin, end, -1)
	}
	return nil
}

// leave takes all steps from a state.
func (s *search) leave(at *state) {
	placements := slices.Clone(at.placements)
	for a := range placements {
		for _, p := range s.choices[a] {
			placements[a] = p
			if next := s.at(placements); next != nil && next != at && !next.done {
				if step := s.along(at, next, a); step != nil {
					s.arrive(at, next, step)
				}
			}
		}
		placements[a] = at.placements[a]
	}
	if !s.withWorld {
		return
	}
	for _, next := range s.exchanges(at) {
		if !next.done {
			s.arrive(at, next, s.exchange(at, next, -1))
		}
	}
}

// arrive notes a way to a state if it is the best so far.
func (s *search) arrive(at, next *state, step *Step) {
	c := at.best.plus(step, s.meshShape)
	if next.done || next.reached && c.compare(next.best) >= 0 {
		return
	}
	next.best, next.step, next.before = c, step, at
	if next.reached {
		heap.Fix(&s.queue, next.place)
		return
	}
	next.reached = true
	heap.Push(&s.queue, next)
}

// exchanges lists the states to which an exchange among all ranks leads: those that owe the
// same reductions. Several exchanges in a row are no better than one.
func (s *search) exchanges(at *state) []*state {
	if s.everywhere && s.owes(at.placements, s.to) {
		var out []*state
		for _, next := range s.states {
			if next != at && sameOwed(at.placements, next.placements) {
				out = append(out, next)
			}
		}
		return out
	}
	placements := slices.Clone(at.placements)
	for a, p := range s.to {
		if placements[a].holdsPart() && p.holdsPart() {
			placements[a] = p
		}
	}
	if next := s.at(placements); next != nil && next != at {
		return []*state{next}
	}
	return nil
}

// owes reports whether a reduction is owed in one of the combinations.
func (s *search) owes(combinations ...[]Placement) bool {
	return slices.ContainsFunc(combinations, func(placements []Placement) bool {
		return slices.ContainsFunc(placements, func(p Placement) bool { return p.kind == partial })
	})
}

// holdsPart reports whether the ranks of the axis hold parts or copies of one value.
func (p Placement) holdsPart() bool { return p.kind == replicate || p.kind == shard }

// sameOwed reports whether two combinations differ only on axes whose ranks hold parts or copies.
func sameOwed(p, q []Placement) bool {
	for a := range p {
		if p[a] != q[a] && !(p[a].holdsPart() && q[a].holdsPart()) {
			return false
		}
	}
	return true
}

// along returns the step that changes one axis by what its ranks hold, nil if there is none.
func (s *search) along(at, next *state, axis int) *Step {
	from, to := at.placements[axis], next.placements[axis]
	local := &Step{Kind: StepLocal, Axis: axis, From: at.placements, To: next.placements}
	size, n := s.total(at), int64(s.meshShape[axis])
	switch {
	case to.kind == varying:
		if from.kind == replicate {
			return local
		}
		return nil
	case from.kind == varying || from.kind == partial && to.kind == partial:
		return nil
	case !sameWithout(at.cuts, next.cuts, axis) && !s.haveAll(at, next, axis):
		return nil
	case to.kind == partial:
		if from.kind == shard && !to.isMean() {
			return nil // what to fill with depends on the reduction
		}
		return local
	case n == 1 || from.kind == replicate:
		return local
	case from.kind == partial && to.kind == replicate:
		return &Step{StepAllReduce, axis, at.placements, next.placements, 2 * (n - 1) * (size / n)}
	case from.kind == partial:
		return &Step{StepReduceScatter, axis, at.placements, next.placements, (n - 1) * (size / n)}
	}
	return s.exchange(at, next, axis)
}

// exchange returns the step in which each rank gets what it needs from the ranks that have it.
func (s *search) exchange(at, next *state, axis int) *Step {
	step := &Step{Kind: StepAllToAll, Axis: axis, From: at.placements, To: next.placements}
	step.NumElems = s.total(next) - s.kept(at, next)
	switch {
	case step.NumElems == 0:
		step.Kind = StepLocal
	case axis >= 0 && next.placements[axis].kind == replicate:
		step.Kind = StepAllGather
	}
	return step
}

// total returns how many elements all ranks together hold. Every element has one owner on the
// axes that cut the tensor.
func (s *search) total(at *state) int64 {
	n := int64(1)
	for _, size := range s.shape {
		n *= int64(size)
	}
	for a, p := range at.placements {
		if p.kind != shard {
			n *= int64(s.meshShape[a])
		}
	}
	return n
}

// kept returns how many elements all ranks together hold in both states.
func (s *search) kept(at, next *state) int64 {
	n := int64(1)
	used := make([]bool, len(s.meshShape))
	left := count(len(s.shape))
	for len(left) > 0 {
		// Dims that the same axes cut belong together.
		dims, axes := left[:1:1], axesOf(at.cuts[left[0]], next.cuts[left[0]])
		left = left[1:]
		for grown := true; grown; {
			grown = false
			for i, d := range left {
				if more := axesOf(at.cuts[d], next.cuts[d]); slices.ContainsFunc(more, func(a int) bool { return slices.Contains(axes, a) }) {
					dims = append(dims, d)
					for _, a := range more {
						if !slices.Contains(axes, a) {
							axes = append(axes, a)
						}
					}
					left = slices.Delete(slices.Clone(left), i, i+1)
					grown = true
					break
				}
			}
		}
		for _, a := range axes {
			used[a] = true
		}
		n *= s.keptOver(at, next, dims, axes)
	}
	for a, size := range s.meshShape {
		if !used[a] {
			n *= int64(size)
		}
	}
	return n
}

// keptOver is kept for some dims and the axes that cut them.
func (s *search) keptOver(at, next *state, dims, axes []int) int64 {
	sizes := make([]int, len(axes))
	numRanks := 1
	for i, a := range axes {
		sizes[i] = s.meshShape[a]
		numRanks *= sizes[i]
	}
	sum := int64(0)
	coordinate := make([]int, len(s.meshShape))
	for r := range numRanks {
		for i, c := range coordinateOf(sizes, r) {
			coordinate[axes[i]] = c
		}
		n := int64(1)
		for _, d := range dims {
			length := 0
			for _, c := range common(spansOfDim(s.shape[d], at.cuts[d], coordinate), spansOfDim(s.shape[d], next.cuts[d], coordinate)) {
				length += c.length
			}
			n *= int64(length)
		}
		sum += n
	}
	return sum
}

// axesOf returns the axes of two lists of cuts.
func axesOf(a, b []cut) []int {
	var axes []int
	for _, c := range slices.Concat(a, b) {
		if c.axis != everyPiece && !slices.Contains(axes, c.axis) {
			axes = append(axes, c.axis)
		}
	}
	return axes
}

// sameWithout reports whether the ranks of an axis together hold the same in two states: if the
// cuts are the same when all pieces of this axis are taken together.
func sameWithout(a, b [][]cut, axis int) bool {
	for d := range a {
		if !slices.Equal(without(a[d], axis), without(b[d], axis)) {
			return false
		}
	}
	return true
}

// without returns the cuts of what the ranks of an axis hold together.
func without(cuts []cut, axis int) []cut {
	var out []cut
	for _, c := range cuts {
		if c.size == 1 {
			continue
		}
		if c.axis == axis {
			c.axis = everyPiece
		}
		out = append(out, c)
	}
	for len(out) > 0 && out[len(out)-1].axis == everyPiece {
		out = out[:len(out)-1]
	}
	return out
}

// haveAll reports whether the ranks of an axis hold together what each of them needs in the next
// state. sameWithout finds that out by the cuts, for all sizes of dims; this looks at the
// elements, and so finds the chances that short dims give. It is for small meshes.
func (s *search) haveAll(at, next *state, axis int) bool {
	if s.numRanks > maxLooked {
		return false
	}
	dim, cut := at.placements[axis].IsShard()
	for r := range s.numRanks {
		coordinate := coordinateOf(s.meshShape, r)
		want := spansAt(s.shape, next.cuts, coordinate)
		if numElems(want) == 0 {
			continue
		}
		for d := range want {
			sources := [][]int{coordinate}
			if cut && d == dim {
				sources = peersOf(s.meshShape, coordinate, axis)
			}
			missing := 0
			for _, w := range want[d] {
				missing += w.length
			}
			for _, source := range sources {
				for _, c := range common(spansOfDim(s.shape[d], at.cuts[d], source), want[d]) {
					missing -= c.length
				}
			}
			if missing > 0 {
				return false
			}
		}
	}
	return true
}

// queue is a heap of states, the best first.
type queue []*state

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return cmp.Or(q[i].best.compare(q[j].best), cmp.Compare(q[i].number, q[j].number)) < 0
}
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}
func (q *queue) Push(x any) {
	s := x.(*state)
	s.place = len(*q)
	*q = append(*q, s)
}
func (q *queue) Pop() any {
	s := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return s
}
