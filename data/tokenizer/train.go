// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"container/heap"
	"context"
	"fmt"
)

const (
	trainWord  = 128 // bytes: longer words (encoded data) teach nothing
	trainToken = 32  // bytes of the longest token that training makes
)

// Train learns a vocabulary of at most size tokens from a sample: the 256
// bytes (token b is byte b) and then the most frequent pairs within words, one
// after another. Pairs of equal frequency are taken in the order of their
// ids, so that the same sample always gives the same tokenizer. A sample with
// too few repetitions gives fewer tokens. A sample of one or two megabytes is
// enough for a thousand tokens. The error is ctx's, or a size outside
// 256..[MaxVocab].
func Train(ctx context.Context, sample []byte, size int) (*Tokenizer, error) {
	return TrainSplit(ctx, sample, size, SplitCode)
}

// TrainSplit is Train with words parted in another way.
func TrainSplit(ctx context.Context, sample []byte, size int, s Split) (*Tokenizer, error) {
	if s > SplitLlama3 {
		return nil, fmt.Errorf("tokenizer: %v is no way to split text for training", s)
	}
	if size < 256 || size > MaxVocab {
		return nil, fmt.Errorf("tokenizer: vocabulary of %d tokens asked for, want 256 (the bytes alone) to %d", size, MaxVocab)
	}
	tr := newTrainer(sample, s)
	for len(tr.tokens) < size {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !tr.mergeBest() {
			break
		}
	}
	return newTokenizer(tr.tokens, tr.merges, pipeline{split: s})
}

// trainer holds the distinct words of the sample as symbols and, for every
// pair of neighbours, how often it occurs and in which words.
type trainer struct {
	words  []trainedWord
	pairs  map[uint64]*pairCount
	queue  pairQueue
	tokens [][]byte
	ids    map[string]uint32
	merges []merge
	raised []*pairCount // scratch: pairs that became more frequent
}

type trainedWord struct {
	syms  []uint32
	count int
	seen  int // the last merge that looked at the word, plus one
}

type pairCount struct {
	key   uint64
	count int
	words []int32 // where it occurs or once did
	round int     // the last merge that raised it
	done  bool    // merged, or too long to merge
}

func newTrainer(sample []byte, s Split) *trainer {
	tr := &trainer{pairs: make(map[uint64]*pairCount, 1<<14), ids: make(map[string]uint32, 1024)}
	for b := range 256 {
		tr.tokens = append(tr.tokens, []byte{byte(b)})
		tr.ids[string([]byte{byte(b)})] = uint32(b)
	}
	index := make(map[string]int32, 1<<14)
	arena := make([]uint32, 0, 1<<16)
	words := &Tokenizer{pipeline: pipeline{split: s}, kinds: unicodeKinds()}
	for pos := 0; pos < len(sample); {
		end := words.wordEnd(sample, pos, true)
		word := sample[pos:end]
		pos = end
		if len(word) < 2 || len(word) > trainWord {
			continue
		}
		if i, ok := index[string(word)]; ok {
			tr.words[i].count++
			continue
		}
		if cap(arena)-len(arena) < len(word) {
			arena = make([]uint32, 0, 1<<16)
		}
		start := len(arena)
		for _, b := range word {
			arena = append(arena, uint32(b))
		}
		index[string(word)] = int32(len(tr.words))
		tr.words = append(tr.words, trainedWord{syms: arena[start:len(arena):len(arena)], count: 1})
	}
	for i := range tr.words {
		w := &tr.words[i]
		for j := 1; j < len(w.syms); j++ {
			tr.change(w.syms[j-1], w.syms[j], w.count, int32(i))
		}
	}
	for _, p := range tr.pairs {
		tr.queue = append(tr.queue, queued{p.count, p})
	}
	heap.Init(&tr.queue)
	return tr
}

// change adds n to the count of a pair, which occurs in the word.
func (tr *trainer) change(left, right uint32, n int, word int32) {
	key := pairKey(left, right)
	p := tr.pairs[key]
	if p == nil {
		p = &pairCount{key: key}
		tr.pairs[key] = p
	}
	p.count += n
	if n > 0 {
		if k := len(p.words); k == 0 || p.words[k-1] != word {
			p.words = append(p.words, word)
		}
		if round := len(tr.merges); p.round != round {
			p.round = round
			tr.raised = append(tr.raised, p)
		}
	}
}

// mergeBest makes a token of the most frequent pair and reports whether there
// was one worth it.
func (tr *trainer) mergeBest() bool {
	for len(tr.queue) > 0 {
		q := heap.Pop(&tr.queue).(queued)
		p := q.pair
		if p.done || q.count < p.count {
			continue // a newer entry is in the queue
		}
		if q.count > p.count { // it has become rarer since
			heap.Push(&tr.queue, queued{p.count, p})
			continue
		}
		if p.count < 2 {
			return false
		}
		left, right := uint32(p.key>>32), uint32(p.key)
		joined := string(tr.tokens[left]) + string(tr.tokens[right])
		p.done = true
		if len(joined) > trainToken {
			continue
		}
		id, ok := tr.ids[joined] // the same bytes by another way
		if !ok {
			id = uint32(len(tr.tokens))
			tr.tokens = append(tr.tokens, []byte(joined))
			tr.ids[joined] = id
		}
		tr.merges = append(tr.merges, merge{left, right, id})
		tr.apply(p, left, right, id)
		return true
	}
	return false
}

// apply replaces the pair by its token in every word and corrects the counts
// of the pairs around it.
func (tr *trainer) apply(p *pairCount, left, right, id uint32) {
	round := len(tr.merges)
	tr.raised = tr.raised[:0]
	for _, wi := range p.words {
		w := &tr.words[wi]
		if w.seen == round {
			continue
		}
		w.seen = round
		in, out := w.syms, w.syms[:0]
		for i := 0; i < len(in); i++ {
			if i+1 == len(in) || in[i] != left || in[i+1] != right {
				out = append(out, in[i])
				continue
			}
			if k := len(out); k > 0 {
				tr.change(out[k-1], left, -w.count, wi)
				tr.change(out[k-1], id, w.count, wi)
			}
			if i+2 < len(in) {
				// If the pair comes again at once, its first half is what
				// follows here; the next turn finds id before it.
				tr.change(right, in[i+2], -w.count, wi)
				tr.change(id, in[i+2], w.count, wi)
			}
			out = append(out, id)
			i++
		}
		w.syms = out
	}
	p.words, p.count = nil, 0
	for _, q := range tr.raised {
		if !q.done {
			heap.Push(&tr.queue, queued{q.count, q})
		}
	}
}

// pairQueue orders pairs by count, then by key. An entry may be out of date:
// its count says so.
type pairQueue []queued

type queued struct {
	count int
	pair  *pairCount
}

func (q pairQueue) Len() int { return len(q) }
func (q pairQueue) Less(i, j int) bool {
	return q[i].count > q[j].count || q[i].count == q[j].count && q[i].pair.key < q[j].pair.key
}
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pairQueue) Push(x any)   { *q = append(*q, x.(queued)) }
func (q *pairQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
