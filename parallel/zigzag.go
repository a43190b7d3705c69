// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"

	"github.com/cohort-ml/cohort/tensor"
)

// zigzag is how the ranks of axis cp share the tokens of a sequence. The sequence is cut into
// 2·ranks chunks, and rank r has the chunks r and 2·ranks-1-r: one from the front, and one
// from the back. A token of a causal model attends to those before it, so the front is cheap
// and the back dear. With one of each, all ranks do the same work.
//
// Chunks differ by one token at most: the first time % (2·ranks) of them have one more. So a
// length need not divide, and nothing is padded.
type zigzag struct{ time, ranks int }

// SequenceError says that a sequence is too short for the ranks that share it.
type SequenceError struct{ Tokens, Ranks int }

func (e *SequenceError) Error() string {
	return fmt.Sprintf("context parallelism: a sequence of %d tokens has fewer than the 2·cp = 2·%d = %d chunks that it is cut into: "+
		"give %d tokens or more, or take fewer ranks on axis cp", e.Tokens, e.Ranks, 2*e.Ranks, 2*e.Ranks)
}

// check returns a [*SequenceError] where a chunk would have no token.
func (z zigzag) check() error {
	if z.time < 2*z.ranks {
		return &SequenceError{z.time, z.ranks}
	}
	return nil
}

// chunk returns the tokens of a chunk: the first, and the end.
func (z zigzag) chunk(i int) [2]int {
	n, more := z.time/(2*z.ranks), z.time%(2*z.ranks)
	return [2]int{i*n + min(i, more), (i+1)*n + min(i+1, more)}
}

// chunks returns which two chunks a rank has.
func (z zigzag) chunks(rank int) [2]int { return [2]int{rank, 2*z.ranks - 1 - rank} }

// runs returns the tokens of a rank, in their order.
func (z zigzag) runs(rank int) [2][2]int {
	c := z.chunks(rank)
	return [2][2]int{z.chunk(c[0]), z.chunk(c[1])}
}

// len returns how many tokens a rank has.
func (z zigzag) len(rank int) int {
	r := z.runs(rank)
	return r[0][1] - r[0][0] + r[1][1] - r[1][0]
}

// take returns a rank's part of a tensor whose dim is the whole sequence.
func (z zigzag) take(t *tensor.Tensor, dim, rank int) *tensor.Tensor {
	r := z.runs(rank)
	return tensor.Cat(dim, t.Narrow(dim, r[0][0], r[0][1]-r[0][0]), t.Narrow(dim, r[1][0], r[1][1]-r[1][0]))
}

// put copies a rank's part into a tensor whose dim is the whole sequence.
func (z zigzag) put(whole *tensor.Tensor, dim, rank int, part *tensor.Tensor) {
	at := 0
	for _, r := range z.runs(rank) {
		n := r[1] - r[0]
		whole.Narrow(dim, r[0], n).CopyFrom(part.Narrow(dim, at, n))
		at += n
	}
}

// ringBlock is a block of the work of a rank: some of its queries, and some of the keys of
// the rank from which they come.
type ringBlock struct {
	queries, keys [2]int // among the tokens of the two ranks: the first, and the end
	causal        bool   // the queries and keys are the same tokens, and see those before them
	// Where the block is one of two chunks, the places of its first query and key, and whether
	// only some of the keys are seen.
	query, key int
	masked     bool
}

// numQueries and numKeys are the size of the block.
func (b ringBlock) numQueries() int { return b.queries[1] - b.queries[0] }
func (b ringBlock) numKeys() int    { return b.keys[1] - b.keys[0] }

// scores returns how many pairs of a query and a key the block computes.
func (b ringBlock) scores() int {
	if n := b.numQueries(); b.causal {
		return n * (n + 1) / 2
	}
	return b.numQueries() * b.numKeys()
}

// blocks returns the work of a rank on the keys of another, or its own. The tokens of a rank are
// in their order, and its two chunks are before and after all of a rank with a higher number. So
// a causal attention has one block for each rank, without a mask.
func (z zigzag) blocks(rank, from int, causal bool) []ringBlock {
	b := ringBlock{queries: [2]int{0, z.len(rank)}, keys: [2]int{0, z.len(from)}}
	switch mine, theirs := z.runs(rank), z.runs(from); {
	case !causal:
	case from == rank:
		b.causal = true
	case from < rank: // its first chunk is before mine, and its second after them
		b.keys[1] = theirs[0][1] - theirs[0][0]
	default: // only my second chunk is after its chunks
		b.queries[0] = mine[0][1] - mine[0][0]
	}
	return []ringBlock{b}
}

// pairs is blocks chunk by chunk, so that the tokens of a block follow each other: for masks,
// and for dropout, which go by places. A window leaves out chunks that nobody sees.
func (z zigzag) pairs(rank, from int, causal bool, window int) (blocks []ringBlock) {
	mine, theirs := z.runs(rank), z.runs(from)
	q := 0
	for i, m := range mine {
		k := 0
		for j, t := range theirs {
			b := ringBlock{queries: [2]int{q, q + m[1] - m[0]}, keys: [2]int{k, k + t[1] - t[0]}, query: m[0], key: t[0]}
			k = b.keys[1]
			query, key := z.chunks(rank)[i], z.chunks(from)[j]
			b.causal = causal && query == key
			// The token at place p sees those at p-window+1 and after.
			if causal && query < key || window > 0 && m[0]-(t[1]-1) >= window {
				continue
			}
			b.masked = window > 0 && m[1]-1-t[0] >= window
			blocks = append(blocks, b)
		}
		q += m[1] - m[0]
	}
	return blocks
}

// ringBytes returns how many bytes a rank sends in one attention of a ring. A token's keys and
// values are numElems elements of size bytes. Forward, it sends those of all ranks but of the one
// after it, and backward the same, and with those of every rank their gradients in float32.
func (z zigzag) ringBytes(rank, numElems, size int) (forward, backward int64) {
	for from := range z.ranks {
		n := int64(z.len(from)) * int64(numElems)
		if from != (rank+1)%z.ranks {
			forward += n * int64(size)
		}
		backward += n * 4
	}
	return forward, forward + backward
}

// headsBytes returns how many bytes a rank sends in one attention with tokens exchanged for heads.
// A token's queries, keys and values are numElems elements of size bytes, and its result is numOut.
func (z zigzag) headsBytes(rank, numElems, numOut, size int) (forward, backward int64) {
	mine := int64(z.len(rank))
	others := int64(z.time) - mine
	ranks := int64(z.ranks)
	toHeads := func(n int) int64 { return mine * int64(n) / ranks * (ranks - 1) * int64(size) }
	toTokens := func(n int) int64 { return others * int64(n) / ranks * int64(size) }
	return toHeads(numElems) + toTokens(numOut), toHeads(numOut) + toTokens(numElems)
}
