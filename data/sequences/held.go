// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"cmp"
	"iter"
	"slices"

	"github.com/cohort-ml/cohort/data"
)

// Held is sequences that a model is evaluated on. It is immutable.
type Held struct {
	Counted int // targets that count
	rows    []data.TokenWindow
	length  int
	step    int
	bytes   int64
}

// Len is the number of sequences.
func (h *Held) Len() int { return len(h.rows) }

// Bytes is the number of bytes that the targets stand for.
func (h *Held) Bytes() int64 { return h.bytes }

// Batches yields the sequences of one rank in batches of at most rows: each belongs to one rank, and
// the shares differ by at most one. Sequences of about the same length are in a batch.
func (h *Held) Batches(rank, world, rows int) iter.Seq[data.TokenBatch] {
	mine := slices.Clone(h.rows[len(h.rows)*rank/world : len(h.rows)*(rank+1)/world])
	slices.SortStableFunc(mine, func(a, b data.TokenWindow) int { return cmp.Compare(len(a.Tokens), len(b.Tokens)) })
	collate := data.CollateSequences(h.length, h.step)
	return func(yield func(data.TokenBatch) bool) {
		for batch := range slices.Chunk(mine, rows) {
			b, err := collate(batch)
			if err != nil || !yield(b) { // a sequence is no longer than the context
				return
			}
		}
	}
}
