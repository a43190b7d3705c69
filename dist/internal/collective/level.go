// SPDX-License-Identifier: Apache-2.0

package collective

// The algorithms here are for groups of several nodes, some with several ranks.
// What nodes tell each other passes their links once: ranks of one node first
// join what they have, and share out what has come.
//
// Chan, Heimlich, Purkayastha and van de Geijn, Collective communication: theory,
// practice, and experience (2007), §5, for their building blocks; the forms by
// counterparts are those of hierarchical all-reduce in Jia and others, Highly
// scalable deep learning training system with mixed-precision (2018), §4.3.

// layout is which ranks of a group are on one node.
type layout struct {
	nodes [][]int // ranks of each node, ascending; nodes by their first ranks
	node  []int   // of each rank
	local []int   // number of each rank on its node
	least int     // ranks on the smallest node
	most  int     // and on the largest
	mixed bool    // ranks of a node do not all follow each other
}

func layoutFor(t Topology) *layout {
	n := t.NumRanks()
	l := &layout{node: make([]int, n), local: make([]int, n)}
	index := make(map[int]int, 1)
	for r, id := range t.Node {
		i, ok := index[id]
		if !ok {
			i = len(l.nodes)
			index[id] = i
			l.nodes = append(l.nodes, nil)
		} else if l.node[r-1] != i {
			l.mixed = true
		}
		l.node[r], l.local[r] = i, len(l.nodes[i])
		l.nodes[i] = append(l.nodes[i], r)
	}
	for i, ranks := range l.nodes {
		if i == 0 || len(ranks) < l.least {
			l.least = len(ranks)
		}
		l.most = max(l.most, len(ranks))
	}
	return l
}

// levels reports whether there are several nodes, and several ranks on one.
func (l *layout) levels() bool { return len(l.nodes) > 1 && l.most > 1 }

// even reports whether all nodes have as many ranks.
func (l *layout) even() bool { return l.least == l.most }

// byNode is all ranks in an order in which those of a node follow each other.
func (l *layout) byNode(rank int) team {
	t := team{n: len(l.node), me: rank}
	if !l.mixed {
		return t
	}
	for i, ranks := range l.nodes {
		if i == l.node[rank] {
			t.me = len(t.ranks) + l.local[rank]
		}
		t.ranks = append(t.ranks, ranks...)
	}
	return t
}

// mates are the ranks of a rank's node.
func (l *layout) mates(rank int) team {
	ranks := l.nodes[l.node[rank]]
	return team{ranks: ranks, n: len(ranks), me: l.local[rank]}
}

// counterparts are the ranks of all nodes, evenly many on each, that have the
// same number on their node.
func (l *layout) counterparts(rank int) team {
	t := team{n: len(l.nodes), me: l.node[rank]}
	for _, ranks := range l.nodes {
		t.ranks = append(t.ranks, ranks[l.local[rank]])
	}
	return t
}

// leaders are one rank of each node, root among them, which comes first.
// ok is whether this rank is one.
func (l *layout) leaders(rank, root int) (t team, ok bool) {
	t = team{n: len(l.nodes), me: mod(l.node[rank]-l.node[root], len(l.nodes))}
	for i := range l.nodes {
		j := mod(l.node[root]+i, len(l.nodes))
		lead := l.nodes[j][0]
		if i == 0 {
			lead = root
		}
		t.ranks = append(t.ranks, lead)
	}
	return t, t.ranks[t.me] == rank
}

// crew is a rank's node, its leader first.
func (l *layout) crew(rank, root int) team {
	leaders, _ := l.leaders(rank, root)
	return l.mates(rank).from(l.local[leaders.ranks[leaders.me]])
}

// handler is the rank of a node that serves a rank of another one.
func (l *layout) handler(node, rank int) int {
	ranks := l.nodes[node]
	return ranks[l.local[rank]%len(ranks)]
}

// served are the ranks of a node that a rank handles.
func (l *layout) served(node, handler int) []int {
	var ranks []int
	k := len(l.nodes[l.node[handler]])
	for i, r := range l.nodes[node] {
		if i%k == l.local[handler] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// reducer adds the all-reduce of a range by a team to a plan.
type reducer func(b *builder, t team, r Range)

const (
	// sharePieces is how many pieces of a chunk each rank of a node has a hand
	// in: as many go in and out of it within the node while it waits for other
	// nodes, which must fit the way to each mate.
	sharePieces = 2
	// shareNodes is between how many nodes such a share is cut before it grows.
	shareNodes = 8
	// maxChunks bounds a plan.
	maxChunks = 1024
)

// chunks cuts a range so that ways that follow each other overlap: while one
// chunk passes between nodes, the next is reduced within them. hands is how many
// ranks of a node share the work.
func (b *builder) chunks(r Range, l *layout, hands, align int) (num int, chunk blocks) {
	num = b.numChunks(r.Len(), l, hands)
	return num, func(i int) Range {
		if i < 0 || i >= num {
			return Range{r.Lo, r.Lo}
		}
		return Share(r.Len(), num, align, i).plus(r.Lo)
	}
}

func (b *builder) numChunks(count int, l *layout, hands int) int {
	share := sharePieces * b.piece * max(1, len(l.nodes)/shareNodes)
	return min(max(count/(hands*share), 1), maxChunks)
}

// levelAllReduce reduce-scatters within each node, all-reduces the shares among
// counterparts, and all-gathers within each node. All nodes have as many ranks.
func (b *builder) levelAllReduce(l *layout, rank int, r Range, align int, inner reducer) {
	mates, peers := l.mates(rank), l.counterparts(rank)
	num, chunk := b.chunks(r, l, mates.n, align)
	for i := range num + 2 {
		if c := chunk(i); c.Len() > 0 {
			share := sharesOf(c, mates.n, align)
			b.part(false, func() { b.directReduceScatter(mates, share, share) })
		}
		if c := chunk(i - 1); c.Len() > 0 {
			b.part(true, func() { inner(b, peers, sharesOf(c, mates.n, align)(mates.me)) })
		}
		if c := chunk(i - 2); c.Len() > 0 {
			b.directAllGather(mates, sharesOf(c, mates.n, align))
		}
	}
}

// part adds what some ranks reduce, in the end or on the way.
func (b *builder) part(last bool, add func()) {
	whole, finish := b.whole, b.finish
	b.whole, b.finish = false, finish && last
	add()
	b.whole, b.finish = whole, finish
}

// leaderAllReduce reduces to one rank of each node, all-reduces among these, and
// broadcasts within each node.
func (b *builder) leaderAllReduce(l *layout, rank int, r Range, align int, inner reducer) {
	leaders, lead := l.leaders(rank, l.nodes[0][0])
	crew := l.crew(rank, l.nodes[0][0])
	num, chunk := b.chunks(r, l, 1, align)
	for i := range num + 2 {
		if c := chunk(i); c.Len() > 0 {
			b.part(false, func() { b.binomialReduce(crew, c, c) })
		}
		if c := chunk(i - 1); c.Len() > 0 && lead {
			b.part(true, func() { inner(b, leaders, c) })
		}
		if c := chunk(i - 2); c.Len() > 0 {
			b.binomialBroadcast(crew, c)
		}
	}
}

// levelBroadcast sends down a tree of nodes, and down one in each node.
func (b *builder) levelBroadcast(l *layout, rank, root int, r Range) {
	if leaders, lead := l.leaders(rank, root); lead {
		b.binomialBroadcast(leaders, r)
	}
	b.binomialBroadcast(l.crew(rank, root), r)
}

// levelReduce is the broadcast backwards. acc is for sums.
func (b *builder) levelReduce(l *layout, rank, root int, own, acc Range) {
	crew := l.crew(rank, root)
	b.part(false, func() { b.binomialReduce(crew, own, acc) })
	if leaders, lead := l.leaders(rank, root); lead {
		if crew.n > 1 {
			own = acc
		}
		// Sums of sums need memory of their own only where own is the input.
		b.part(true, func() { b.binomialReduce(leaders, own, acc) })
	}
}

// levelBarrier gathers signals within each node, disseminates among leaders,
// and spreads within each node.
func (b *builder) levelBarrier(l *layout, rank int) {
	root := l.nodes[0][0]
	crew := l.crew(rank, root)
	low := lowestBit(crew.me, crew.n)
	for bit := 1; bit < low && crew.me+bit < crew.n; bit *= 2 {
		b.await(crew.at(crew.me + bit))
	}
	if leaders, lead := l.leaders(rank, root); lead {
		b.dissemination(leaders)
	} else {
		b.signal(crew.at(crew.me - low))
		b.await(crew.at(crew.me - low))
	}
	for bit := low / 2; bit > 0; bit /= 2 {
		if crew.me+bit < crew.n {
			b.signal(crew.at(crew.me + bit))
		}
	}
}

// lag is how many nodes behind what comes from a node is given to its mates:
// small blocks wait until all have come, for each would wait for a message's
// latency; large ones pass on while others come. most is the largest block.
func (b *builder) lag(l *layout, most int) int {
	if most < b.piece/4 {
		return len(l.nodes)
	}
	return 1
}

// largest returns the most elements that any rank's block has.
func largest(l *layout, block blocks) int {
	most := 0
	for r := range l.node {
		most = max(most, block(r).Len())
	}
	return most
}

// levelAllGather sends every rank's block to one rank of every other node, which
// gives it to the others there.
func (b *builder) levelAllGather(l *layout, rank int, block blocks) {
	num, here, mates := len(l.nodes), l.node[rank], l.mates(rank)
	lag := b.lag(l, largest(l, block))
	for d := range num + lag {
		if d > 0 && d < num {
			from := mod(here-d, num)
			b.send(l.handler(mod(here+d, num), rank), block(rank))
			for _, r := range l.served(from, rank) {
				b.recv(r, block(r))
			}
		}
		// What a mate has of an earlier round, at first its own.
		behind := d - lag
		of := func(mate int) []int {
			if behind == 0 {
				return []int{mate}
			}
			return l.served(mod(here-behind, num), mate)
		}
		for e := 1; e < mates.n && behind >= 0; e++ {
			to, from := mates.at(mates.me+e), mates.at(mates.me-e)
			for _, r := range of(rank) {
				b.send(to, block(r))
			}
			for _, r := range of(from) {
				b.recv(from, block(r))
			}
		}
	}
}

// levelReduceScatter is the all-gather backwards: for each rank of another node,
// one of this node reduces what its ranks have and sends the sum.
func (b *builder) levelReduceScatter(l *layout, rank int, src blocks, acc Range) {
	num, here, mates := len(l.nodes), l.node[rank], l.mates(rank)
	lag := b.lag(l, largest(l, src))
	b.part(false, func() {
		b.reduceServed(mates, []int{rank}, func(mate int) []int { return []int{mate} }, src, []Range{acc})
	})
	own := src(rank)
	if mates.n > 1 {
		own = acc
	}
	sums := make([][]Range, num) // of what this rank serves, by round
	for d := 1; d < num+lag; d++ {
		if d < num {
			to := mod(here+d, num)
			ranks := l.served(to, rank)
			for _, r := range ranks {
				sum := src(r)
				if mates.n > 1 {
					sum = b.scratch(sum.Len())
				}
				sums[d] = append(sums[d], sum)
			}
			b.part(false, func() {
				b.reduceServed(mates, ranks, func(mate int) []int { return l.served(to, mate) }, src, sums[d])
			})
		}
		if behind := d - lag; behind > 0 {
			for i, r := range l.served(mod(here+behind, num), rank) {
				b.send(r, sums[behind][i])
			}
			from := l.handler(mod(here-behind, num), rank)
			b.part(true, func() { b.reduce(from, own, acc, behind == num-1) })
			own = acc
		}
	}
}

// reduceServed reduces within a node what each of its ranks is to serve: this
// one the blocks of some ranks, into sums.
func (b *builder) reduceServed(mates team, ranks []int, served func(mate int) []int, src blocks, sums []Range) {
	for e := 1; e < mates.n; e++ {
		to, from := mates.at(mates.me+e), mates.at(mates.me-e)
		for _, r := range served(to) {
			b.send(to, src(r))
		}
		for i, r := range ranks {
			own := src(r)
			if e > 1 {
				own = sums[i]
			}
			b.reduce(from, own, sums[i], e == mates.n-1)
		}
	}
}

// levelAllToAll brings blocks to the rank of this node with the number that
// their receiver has on its, which then exchanges with its counterparts: fewer
// and larger messages between nodes. Blocks are of one size, and nodes too.
func (b *builder) levelAllToAll(l *layout, rank int, to, from blocks) {
	mates, peers := l.mates(rank), l.counterparts(rank)
	size := to(0).Len()
	sorted, came := b.scratch(peers.n*mates.n*size), b.scratch(peers.n*mates.n*size)
	slot := func(all Range, node, local int) Range {
		lo := all.Lo + (node*mates.n+local)*size
		return Range{lo, lo + size}
	}
	node := func(all Range) blocks {
		return func(i int) Range { return Range{slot(all, i, 0).Lo, slot(all, i, mates.n-1).Hi} }
	}
	for i, ranks := range l.nodes {
		b.copy(slot(sorted, i, mates.me).Lo, to(ranks[mates.me]))
	}
	for e := 1; e < mates.n; e++ {
		dst, src := mod(mates.me+e, mates.n), mod(mates.me-e, mates.n)
		for i, ranks := range l.nodes {
			b.send(mates.at(dst), to(ranks[dst]))
			b.recv(mates.at(src), slot(sorted, i, src))
		}
	}
	b.exchange(peers, node(sorted), node(came))
	for i, ranks := range l.nodes {
		all := came
		if i == peers.me {
			all = sorted
		}
		for j, r := range ranks {
			b.copy(from(r).Lo, slot(all, i, j))
		}
	}
}
