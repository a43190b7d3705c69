// SPDX-License-Identifier: Apache-2.0

package collective

import "github.com/cohort-ml/cohort/dist/operation"

// tables are the algorithms by operation. The first of equal cost is chosen.
var tables = [...][]algorithm{
	operation.Barrier:       barriers,
	operation.AllReduce:     allReduces,
	operation.Broadcast:     broadcasts,
	operation.AllGather:     allGathers,
	operation.ReduceScatter: reduceScatters,
	operation.Reduce:        reduces,
	operation.Gather:        gathers,
	operation.Scatter:       scatters,
	operation.AllToAll:      allToAlls,
}

func few(p *problem) bool         { return p.n <= maxPeers }
func fewOrStrict(p *problem) bool { return few(p) || p.strict }
func leveled(p *problem) bool     { return p.layout.levels() }
func evenLevels(p *problem) bool  { return p.layout.levels() && p.layout.even() }

var barriers = []algorithm{
	{
		name: "dissemination",
		cost: func(p *problem) int64 { return log2(p.n) * p.arms().far.step(0) },
		add:  func(p *problem, b *builder) { b.dissemination(p.ordered()) },
	},
	{
		name: "two-level dissemination",
		fits: leveled,
		cost: func(p *problem) int64 {
			m, x := p.mates(), p.peers(1)
			return 2*log2(m.n)*m.far.step(0) + log2(x.n)*x.far.step(0)
		},
		add: func(p *problem, b *builder) { b.levelBarrier(p.layout, p.rank) },
	},
}

var allReduces = append([]algorithm{
	{
		name: "exchange", exact: true,
		fits: func(p *problem) bool { return fewOrStrict(p) && int64(p.n)*p.bytes <= maxGathered },
		cost: func(p *problem) int64 { return p.arms().exchangeAllReduce(p.bytes) },
		add:  func(p *problem, b *builder) { b.exchangeAllReduce(p.all(), b.out()) },
	},
	{
		name: "direct", exact: true,
		fits: fewOrStrict,
		cost: func(p *problem) int64 { return p.arms().directAllReduce(p.bytes) },
		add:  func(p *problem, b *builder) { b.directAllReduce(p.all(), b.out(), p.align) },
	},
	{
		name: "recursive doubling",
		fits: func(p *problem) bool { return p.bytes <= maxGathered },
		cost: func(p *problem) int64 { return p.arms().doublingAllReduce(p.bytes) },
		add:  func(p *problem, b *builder) { b.doublingAllReduce(p.ordered(), b.out()) },
	},
	{
		name: "recursive halving and doubling",
		cost: func(p *problem) int64 { return p.arms().halvingAllReduce(p.bytes) },
		add:  func(p *problem, b *builder) { b.halvingAllReduce(p.ordered(), b.out(), p.align) },
	},
	{
		name: "ring",
		cost: func(p *problem) int64 { return p.arms().ringAllReduce(p.bytes) },
		add:  func(p *problem, b *builder) { b.ringAllReduce(p.ordered(), b.out(), p.align) },
	},
}, levelAllReduces()...)

// inner is what runs between the nodes of a two-level all-reduce.
type inner struct {
	name string
	fits func(p *problem, n int, size int64) bool
	cost func(a arms, size int64) int64
	add  func(align int) reducer
}

var inners = []inner{
	{
		name: "direct",
		fits: func(_ *problem, n int, _ int64) bool { return n <= maxPeers },
		cost: arms.directAllReduce,
		add:  func(align int) reducer { return func(b *builder, t team, r Range) { b.directAllReduce(t, r, align) } },
	},
	{
		name: "exchange",
		fits: func(_ *problem, n int, size int64) bool { return n <= maxPeers && int64(n)*size <= maxGathered },
		cost: arms.exchangeAllReduce,
		add:  func(int) reducer { return (*builder).exchangeAllReduce },
	},
	{
		name: "recursive doubling",
		fits: func(_ *problem, _ int, size int64) bool { return size <= maxGathered },
		cost: arms.doublingAllReduce,
		add:  func(int) reducer { return (*builder).doublingAllReduce },
	},
	{
		name: "recursive halving and doubling",
		fits: func(*problem, int, int64) bool { return true },
		cost: arms.halvingAllReduce,
		add:  func(align int) reducer { return func(b *builder, t team, r Range) { b.halvingAllReduce(t, r, align) } },
	},
	{
		name: "ring",
		fits: func(*problem, int, int64) bool { return true },
		cost: arms.ringAllReduce,
		add:  func(align int) reducer { return func(b *builder, t team, r Range) { b.ringAllReduce(t, r, align) } },
	},
}

// numChunks is in how many chunks a two-level all-reduce goes.
func (p *problem) numChunks(hands int) int64 {
	b := builder{piece: p.piece}
	return int64(b.numChunks(p.total, p.layout, hands))
}

// levelAllReduces are the two-level all-reduces: by counterparts, and by leaders.
func levelAllReduces() []algorithm {
	var as []algorithm
	for _, in := range inners {
		as = append(as, algorithm{
			name: "two-level " + in.name,
			fits: func(p *problem) bool {
				return evenLevels(p) && p.layout.most <= maxPeers && in.fits(p, len(p.layout.nodes), p.bytes/int64(p.layout.most))
			},
			cost: func(p *problem) int64 {
				m, k := p.mates(), int64(p.layout.most)
				return overlapped(m.directAllReduce(p.bytes), in.cost(p.peers(p.layout.most), p.bytes/k), p.numChunks(p.layout.most))
			},
			add: func(p *problem, b *builder) { b.levelAllReduce(p.layout, p.rank, b.out(), p.align, in.add(p.align)) },
		}, algorithm{
			name: "two-level by leaders, " + in.name,
			fits: func(p *problem) bool {
				return leveled(p) && !p.layout.even() && in.fits(p, len(p.layout.nodes), p.bytes)
			},
			cost: func(p *problem) int64 {
				m := p.mates()
				return overlapped(2*m.binomial(p.bytes)+log2(m.n)*p.bytes*m.Reduce, in.cost(p.peers(1), p.bytes), p.numChunks(1))
			},
			add: func(p *problem, b *builder) { b.leaderAllReduce(p.layout, p.rank, b.out(), p.align, in.add(p.align)) },
		})
	}
	return as
}

var reduceScatters = []algorithm{
	{
		name: "direct", exact: true,
		fits: fewOrStrict,
		cost: func(p *problem) int64 { return p.arms().direct(p.bytes) + p.bytes*p.costs.Reduce },
		add:  func(p *problem, b *builder) { b.directReduceScatter(p.all(), p.sources(b), p.results(b, Range{})) },
	},
	{
		name: "recursive halving",
		fits: func(p *problem) bool { return p.n > 1 && powerOfTwo(p.n) },
		cost: func(p *problem) int64 { return p.arms().halving(p.bytes) },
		add: func(p *problem, b *builder) {
			acc := b.scratch(p.total)
			b.halvingReduceScatter(p.all(), p.sources(b), func(i int) Range { return p.block(i).plus(acc.Lo) })
			b.copy(0, p.block(p.rank).plus(acc.Lo))
		},
	},
	{
		name: "ring",
		cost: func(p *problem) int64 { return p.arms().ring(p.bytes) + p.bytes*p.costs.Reduce },
		add: func(p *problem, b *builder) {
			t, acc := p.ordered(), b.scratch(p.total)
			src, sum := p.sources(b), p.results(b, acc)
			b.ringReduceScatter(t, func(i int) Range { return src(t.at(i)) }, func(i int) Range { return sum(t.at(i)) })
		},
	},
	{
		name: "two-level",
		fits: leveled,
		cost: func(p *problem) int64 {
			m, x, k := p.mates(), p.peers(p.layout.most), int64(p.layout.most)
			return m.far.fan((k-1)*int64(x.n), p.bytes/int64(p.n)) + p.bytes*p.costs.Reduce + x.direct(p.bytes/k)
		},
		add: func(p *problem, b *builder) { b.levelReduceScatter(p.layout, p.rank, p.sources(b), b.out()) },
	},
}

// sources are the blocks of the input, results those of what is reduced: this
// rank's own in the output, others in working memory.
func (p *problem) sources(b *builder) blocks {
	return func(i int) Range { return p.block(i).plus(b.NumOut) }
}

func (p *problem) results(b *builder, acc Range) blocks {
	return func(i int) Range {
		if i == p.rank {
			return b.out()
		}
		return p.block(i).plus(acc.Lo)
	}
}

var allGathers = []algorithm{
	{
		name: "direct",
		fits: few,
		cost: func(p *problem) int64 { return p.arms().direct(p.bytes) },
		add: func(p *problem, b *builder) {
			p.place(b)
			b.directAllGather(p.all(), p.block)
		},
	},
	{
		name: "Bruck",
		fits: func(p *problem) bool { return p.bytes <= maxGathered },
		cost: func(p *problem) int64 { return p.arms().bruck(p.bytes) },
		add: func(p *problem, b *builder) {
			if p.n == 1 {
				p.place(b)
			}
			b.bruckAllGather(p.all(), b.in(), p.block)
		},
	},
	{
		name: "ring",
		cost: func(p *problem) int64 { return p.arms().ring(p.bytes) },
		add: func(p *problem, b *builder) {
			p.place(b)
			t := p.ordered()
			b.ringAllGather(t, func(i int) Range { return p.block(t.at(i)) })
		},
	},
	{
		name: "two-level",
		fits: leveled,
		cost: func(p *problem) int64 {
			m, x, k := p.mates(), p.peers(p.layout.most), int64(p.layout.most)
			return x.direct(p.bytes/k) + m.far.fan((k-1)*int64(x.n), p.bytes/int64(p.n))
		},
		add: func(p *problem, b *builder) {
			p.place(b)
			b.levelAllGather(p.layout, p.rank, p.block)
		},
	},
}

// place copies this rank's contribution to its place in the output.
func (p *problem) place(b *builder) { b.copy(p.block(p.rank).Lo, b.in()) }

var broadcasts = []algorithm{
	{
		name: "two-level binomial tree",
		fits: leveled,
		cost: func(p *problem) int64 { return p.peers(1).binomial(p.bytes) + p.mates().binomial(p.bytes) },
		add:  func(p *problem, b *builder) { b.levelBroadcast(p.layout, p.rank, p.c.Root, b.out()) },
	},
	{
		name: "binomial tree",
		cost: func(p *problem) int64 { return p.arms().binomial(p.bytes) },
		add:  func(p *problem, b *builder) { b.binomialBroadcast(p.rooted(), b.out()) },
	},
	{
		name: "chain",
		cost: func(p *problem) int64 { return p.arms().chain(p.bytes) },
		add:  func(p *problem, b *builder) { b.chainBroadcast(p.rooted(), b.out()) },
	},
	{
		name: "scatter and direct all-gather",
		fits: few,
		cost: func(p *problem) int64 { a := p.arms(); return a.scatterTree(p.bytes) + a.direct(p.bytes) },
		add: func(p *problem, b *builder) {
			t, share := p.rooted(), sharesOf(b.out(), p.n, p.align)
			b.binomialScatter(t, func(lo, hi int) []Range { return []Range{sharesFrom(share, lo, hi)} })
			b.directAllGather(t, share)
		},
	},
	{
		name: "scatter and ring all-gather",
		cost: func(p *problem) int64 { a := p.arms(); return a.scatterTree(p.bytes) + a.ring(p.bytes) },
		add: func(p *problem, b *builder) {
			t, share := p.rooted(), sharesOf(b.out(), p.n, p.align)
			b.binomialScatter(t, func(lo, hi int) []Range { return []Range{sharesFrom(share, lo, hi)} })
			b.ringAllGather(t, share)
		},
	},
}

var reduces = []algorithm{
	{
		name: "two-level binomial tree",
		fits: leveled,
		cost: func(p *problem) int64 {
			m, x := p.mates(), p.peers(1)
			return m.binomial(p.bytes) + x.binomial(p.bytes) + (log2(m.n)+log2(x.n))*p.bytes*m.Reduce
		},
		add: func(p *problem, b *builder) {
			own, acc := p.reduced(b, true)
			b.levelReduce(p.layout, p.rank, p.c.Root, own, acc)
		},
	},
	{
		name: "direct", exact: true,
		fits: fewOrStrict,
		cost: func(p *problem) int64 {
			a, n := p.arms(), int64(p.n)
			return a.far.fan(n-1, p.bytes) + n*p.bytes*a.Reduce
		},
		add: func(p *problem, b *builder) {
			own, acc := p.reduced(b, false)
			b.directReduce(p.all(), p.c.Root, own, acc)
		},
	},
	{
		name: "direct reduce-scatter and gather", exact: true,
		fits: fewOrStrict,
		cost: func(p *problem) int64 { a := p.arms(); return 2*a.direct(p.bytes) + p.bytes*a.Reduce },
		add:  reduceAndGather,
	},
	{
		name: "binomial tree",
		cost: func(p *problem) int64 { a := p.arms(); return a.binomial(p.bytes) + log2(p.n)*p.bytes*a.Reduce },
		add: func(p *problem, b *builder) {
			own, acc := p.reduced(b, true)
			b.binomialReduce(p.rooted(), own, acc)
		},
	},
	{
		name: "chain",
		cost: func(p *problem) int64 {
			a := p.arms()
			return a.chain(p.bytes) + (p.bytes+int64(p.n)*min(p.bytes, PieceBytes))*a.Reduce
		},
		add: func(p *problem, b *builder) {
			own, acc := p.reduced(b, true)
			b.chainReduce(p.rooted(), own, acc)
		},
	},
}

// reduced returns a rank's elements and where to reduce them: at the root in
// place, elsewhere in working memory if there is any.
func (p *problem) reduced(b *builder, work bool) (own, acc Range) {
	if p.rank == p.c.Root {
		return b.out(), b.out()
	}
	if work {
		acc = b.scratch(p.total)
	}
	return b.in(), acc
}

// reduceAndGather has every rank reduce a share, and the root gather them.
func reduceAndGather(p *problem, b *builder) {
	own, acc := p.reduced(b, false)
	t, src := p.all(), sharesOf(own, p.n, p.align)
	root := p.rank == p.c.Root
	var mine Range
	if !root {
		mine = b.scratch(src(p.rank).Len())
	}
	b.directReduceScatter(t, src, func(i int) Range {
		if root {
			return sharesOf(acc, p.n, p.align)(i)
		}
		return mine
	})
	b.directGather(t, p.c.Root, mine, sharesOf(acc, p.n, p.align))
}

// equal reports whether all ranks know that their parts are of one size.
func equal(p *problem) bool { return p.c.CountsAgree() }

var gathers = []algorithm{
	{
		name: "direct",
		cost: func(p *problem) int64 { return p.arms().direct(p.bytes) },
		add: func(p *problem, b *builder) {
			if p.rank == p.c.Root {
				p.place(b)
			}
			b.directGather(p.all(), p.c.Root, b.in(), p.block)
		},
	},
	{
		name: "binomial tree",
		fits: equal,
		cost: func(p *problem) int64 { a := p.arms(); return a.scatterTree(p.bytes) + p.bytes*a.Copy },
		add: func(p *problem, b *builder) {
			at := p.rotated(b, b.out())
			if p.rank == p.c.Root {
				p.place(b)
			} else {
				b.copy(at(mod(p.rank-p.c.Root, p.n), mod(p.rank-p.c.Root, p.n)+1)[0].Lo, b.in())
			}
			b.binomialGather(p.all().from(p.c.Root), at)
		},
	},
}

var scatters = []algorithm{
	{
		name: "direct",
		cost: func(p *problem) int64 { return p.arms().direct(p.bytes) },
		add: func(p *problem, b *builder) {
			if p.rank == p.c.Root {
				b.copy(0, p.sources(b)(p.rank))
			}
			b.directScatter(p.all(), p.c.Root, b.out(), p.sources(b))
		},
	},
	{
		name: "binomial tree",
		fits: equal,
		cost: func(p *problem) int64 { a := p.arms(); return a.scatterTree(p.bytes) + p.bytes*a.Copy },
		add: func(p *problem, b *builder) {
			at := p.rotated(b, b.in())
			b.binomialScatter(p.all().from(p.c.Root), at)
			me := mod(p.rank-p.c.Root, p.n)
			b.copy(0, at(me, me+1)[0])
		},
	},
}

// rotated returns where the blocks of ranks counted from the root lie: at the
// root in data, by rank; elsewhere in working memory, by their place in the
// tree. What wraps around is two runs everywhere, so that messages agree.
func (p *problem) rotated(b *builder, data Range) spans {
	me, size := mod(p.rank-p.c.Root, p.n), p.c.Count
	last := p.n - p.c.Root // of what does not wrap
	base := data.Lo + p.c.Root*size
	wrapped := data.Lo - last*size
	if me != 0 {
		work := b.scratch(min(lowestBit(me, p.n), p.n-me) * size)
		base = work.Lo - me*size
		wrapped = base
	}
	return func(lo, hi int) []Range {
		switch {
		case hi <= last:
			return []Range{{base + lo*size, base + hi*size}}
		case lo >= last:
			return []Range{{wrapped + lo*size, wrapped + hi*size}}
		}
		return []Range{{base + lo*size, base + last*size}, {wrapped + last*size, wrapped + hi*size}}
	}
}

var allToAlls = []algorithm{
	{
		name: "pairwise exchange",
		cost: func(p *problem) int64 { return p.arms().direct(p.bytes) },
		add: func(p *problem, b *builder) {
			to, from := p.exchanged(b)
			b.copy(from(p.rank).Lo, to(p.rank))
			b.exchange(p.all(), to, from)
		},
	},
	{
		name: "Bruck",
		fits: func(p *problem) bool { return equal(p) && p.bytes <= maxGathered },
		cost: func(p *problem) int64 { return p.arms().bruckAllToAll(p.bytes) },
		add: func(p *problem, b *builder) {
			to, from := p.exchanged(b)
			b.bruckAllToAll(p.all(), to, from)
		},
	},
	{
		name: "two-level",
		fits: func(p *problem) bool { return equal(p) && evenLevels(p) },
		cost: func(p *problem) int64 {
			m, x, k := p.mates(), p.peers(p.layout.most), int64(p.layout.most)
			return m.far.fan((k-1)*int64(x.n), p.bytes/int64(p.n)) + x.direct(p.bytes) + 2*p.bytes*m.Copy
		},
		add: func(p *problem, b *builder) {
			to, from := p.exchanged(b)
			b.levelAllToAll(p.layout, p.rank, to, from)
		},
	},
}

// exchanged returns the blocks that go to each rank and come from it.
func (p *problem) exchanged(b *builder) (to, from blocks) {
	sends, recvs := startsOf(p.c.Parts), startsOf(p.c.Recvs)
	return func(i int) Range { return blockOf(sends, i, p.c.Count).plus(b.NumOut) },
		func(i int) Range { return blockOf(recvs, i, p.c.Count) }
}
