// SPDX-License-Identifier: Apache-2.0

package data

import "fmt"

// NoTarget stands in [TokenBatch.Targets] for a target that does not count: it is what
// tensor.CrossEntropy ignores.
const NoTarget = -100

// CollateSequences returns a function that makes a batch of sequences, which may differ in length.
// Shorter rows are filled up behind their end with tokens that do not count. A row of the batch has as
// many tokens as the longest sequence needs, up to the next multiple of step, or length if step is 0.
func CollateSequences(length, step int) func([]TokenWindow) (TokenBatch, error) {
	return func(windows []TokenWindow) (TokenBatch, error) {
		longest, packed := 1, false
		for _, w := range windows {
			longest = max(longest, len(w.Tokens)-1)
			packed = packed || w.Documents != nil
		}
		switch {
		case len(windows) == 0:
			return TokenBatch{}, fmt.Errorf("data: a batch of no sequences")
		case longest > length:
			return TokenBatch{}, fmt.Errorf("data: a sequence has %d tokens, at most %d are allowed", longest, length)
		case step > 0:
			longest = min((longest+step-1)/step*step, length)
		default:
			longest = length
		}
		ids := make([]int64, 2*len(windows)*longest)
		b := TokenBatch{Rows: len(windows), Length: longest, Inputs: ids[:len(ids)/2], Targets: ids[len(ids)/2:]}
		if packed {
			b.Documents = make([]int64, len(windows)*longest)
		}
		for i, w := range windows {
			b.fill(i, w)
			b.Bytes += int64(w.Bytes)
		}
		return b, nil
	}
}

// fill sets a row.
func (b *TokenBatch) fill(row int, w TokenWindow) {
	inputs, targets := b.Inputs[row*b.Length:(row+1)*b.Length], b.Targets[row*b.Length:(row+1)*b.Length]
	n := max(len(w.Tokens)-1, 0)
	copy(inputs, w.Tokens[:n])
	for i := range targets {
		if i >= n || w.Ignored != nil && w.Ignored[i] {
			targets[i] = NoTarget
			continue
		}
		targets[i] = w.Tokens[i+1]
		b.Counted++
	}
	if b.Documents == nil {
		return
	}
	documents := b.Documents[row*b.Length : (row+1)*b.Length]
	last := int64(0)
	for i := range n {
		if w.Documents != nil {
			last = w.Documents[i]
		}
		documents[i] = last
	}
	for i := n; i < b.Length; i++ {
		documents[i] = last + 1 // what fills up sees nothing else
	}
}
