// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"slices"
	"testing"
)

// TestZigzag: the ranks' parts are all tokens, each once, and differ by one token at most.
func TestZigzag(t *testing.T) {
	for ranks := 1; ranks <= 6; ranks++ {
		for time := 2 * ranks; time < 10*ranks; time++ {
			z := zigzag{time, ranks}
			if err := z.check(); err != nil {
				t.Fatal(err)
			}
			seen := make([]bool, time)
			for r := range ranks {
				numTokens, last := 0, -1
				for _, run := range z.runs(r) {
					for at := run[0]; at < run[1]; at++ {
						if seen[at] || at <= last {
							t.Fatalf("%d tokens, %d ranks: rank %d has token %d again, or after %d", time, ranks, r, at, last)
						}
						seen[at], last = true, at
						numTokens++
					}
				}
				if n := z.len(r); n != numTokens || n != time/ranks && n != time/ranks+1 {
					t.Fatalf("%d tokens, %d ranks: rank %d has %d, and says %d", time, ranks, r, numTokens, n)
				}
			}
			if slices.Contains(seen, false) {
				t.Fatalf("%d tokens, %d ranks: some have no rank", time, ranks)
			}
		}
	}
}

// TestShortSequence: a sequence with fewer tokens than chunks is an error with the equation.
func TestShortSequence(t *testing.T) {
	err := zigzag{5, 3}.check()
	var short *SequenceError
	if !errors.As(err, &short) || short.Tokens != 5 || short.Ranks != 3 {
		t.Fatalf("the error is %v", err)
	}
	const want = "context parallelism: a sequence of 5 tokens has fewer than the 2·cp = 2·3 = 6 chunks that it is cut into: " +
		"give 6 tokens or more, or take fewer ranks on axis cp"
	if err.Error() != want {
		t.Errorf("the error is\n%v, want\n%s", err, want)
	}
	if err := (zigzag{6, 3}).check(); err != nil {
		t.Error(err)
	}
}

// seen returns which pairs of a query and a key the blocks of all ranks compute.
func (z zigzag) seen(blocks func(rank, from int) []ringBlock, sees func(query, key int) bool) (pairs [][]int) {
	for range z.time {
		pairs = append(pairs, make([]int, z.time))
	}
	place := func(rank, token int) int {
		r := z.runs(rank)
		if first := r[0][1] - r[0][0]; token >= first {
			return r[1][0] + token - first
		}
		return r[0][0] + token
	}
	for rank := range z.ranks {
		for from := range z.ranks {
			for _, b := range blocks(rank, from) {
				for q := b.queries[0]; q < b.queries[1]; q++ {
					for k := b.keys[0]; k < b.keys[1]; k++ {
						query, key := place(rank, q), place(from, k)
						if b.causal && key > query || b.masked && !sees(query, key) {
							continue
						}
						pairs[query][key]++
					}
				}
			}
		}
	}
	return pairs
}

// TestRingBlocks: each query meets each key that it sees once, and no other, in blocks of whole
// parts and of chunks.
func TestRingBlocks(t *testing.T) {
	for _, z := range []zigzag{{8, 2}, {13, 2}, {12, 3}, {29, 4}} {
		for _, window := range []int{0, 1, 3, 7, 100} {
			for _, causal := range []bool{false, true} {
				if window > 0 && !causal {
					continue
				}
				sees := func(query, key int) bool { return !causal || key <= query && (window == 0 || key > query-window) }
				forms := map[string]func(rank, from int) []ringBlock{
					"chunks": func(rank, from int) []ringBlock { return z.pairs(rank, from, causal, window) },
				}
				if window == 0 {
					forms["parts"] = func(rank, from int) []ringBlock { return z.blocks(rank, from, causal) }
				}
				for name, blocks := range forms {
					for query, row := range z.seen(blocks, sees) {
						for key, n := range row {
							if want := sees(query, key); (n == 1) != want || n > 1 {
								t.Fatalf("%v, %s, causal %t, window %d: query %d meets key %d %d times, and sees it: %t", z, name, causal, window, query, key, n, want)
							}
						}
					}
				}
			}
		}
	}
}

// TestBalance: under a causal mask all ranks compute the same number of scores in each step of the
// ring, where the length divides. Elsewhere the difference is that of a token more.
func TestBalance(t *testing.T) {
	for _, ranks := range []int{2, 3, 4, 8} {
		for _, time := range []int{2 * ranks * 32, 2*ranks*32 + 1, 2*ranks*32 + ranks + 1} {
			z := zigzag{time, ranks}
			total, most := 0, 0
			for step := range ranks {
				var scores []int
				for rank := range ranks {
					n := 0
					for _, b := range z.blocks(rank, (rank-step+ranks)%ranks, true) {
						n += b.scores()
					}
					scores = append(scores, n)
					total += n
				}
				if time%(2*ranks) == 0 && slices.Min(scores) != slices.Max(scores) {
					t.Errorf("%v: in step %d the ranks compute %v scores", z, step, scores)
				}
				most += slices.Max(scores)
			}
			if want := time * (time + 1) / 2; total != want {
				t.Errorf("%v: %d scores in all, want %d", z, total, want)
			}
			if ideal := float64(total) / float64(ranks); float64(most) > 1.05*ideal {
				t.Errorf("%v: the slowest ranks of the steps compute %d scores, an even share is %.0f", z, most, ideal)
			}
		}
	}
}
