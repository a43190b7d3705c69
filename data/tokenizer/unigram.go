// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// scored is a token of a Unigram model with the logarithm of its probability.
type scored struct {
	name  string
	score float64
}

// unigram is the model of sentencepiece: of all ways to part a word into tokens
// the one whose tokens are the likeliest together (Kudo: Subword Regularization,
// ACL 2018).
type unigram struct {
	trie   trie
	scores []float64
	ids    map[string]uint32
	bytes  [256]uint32 // tokens of bytes, none if unknown characters are not spelled in bytes
	spells bool
	unk    uint32 // none if there is none
	low    float64
}

// unknownCost is how much less likely than the least likely token an unknown
// character is.
const unknownCost = 10

// unigramNames are the tokens by id.
func (m *model) unigramNames() ([]string, error) {
	if len(m.scores) == 0 {
		return nil, formatErr("model", "the vocabulary is empty")
	}
	if len(m.scores) > MaxVocab {
		return nil, formatErr("model.vocab", "has %d tokens, at most %d are supported", len(m.scores), MaxVocab)
	}
	names := make([]string, len(m.scores))
	for id, s := range m.scores {
		names[id] = s.name
	}
	return names, nil
}

func newUnigram(m *model) (*unigram, error) {
	u := &unigram{ids: make(map[string]uint32, len(m.scores)), unk: none, low: math.Inf(1), scores: make([]float64, len(m.scores))}
	total := 0
	for id, s := range m.scores {
		if math.IsNaN(s.score) || math.IsInf(s.score, 0) {
			return nil, formatErr("model.vocab", "token %d has the score %v", id, s.score)
		}
		u.ids[s.name] = uint32(id)
		u.scores[id] = s.score
		u.low = min(u.low, s.score)
		total += len(s.name)
	}
	if total > 64<<20 {
		return nil, formatErr("model.vocab", "has %d bytes of tokens", total)
	}
	if m.UnkID != nil {
		if *m.UnkID < 0 || *m.UnkID >= int64(len(m.scores)) {
			return nil, formatErr("model.unk_id", "is %d, the vocabulary has %d tokens", *m.UnkID, len(m.scores))
		}
		u.unk = uint32(*m.UnkID)
	}
	u.spells = m.ByteFallback
	for b := range u.bytes {
		id, ok := u.ids[byteName(byte(b))]
		if !ok {
			id = none
		}
		u.bytes[b] = id
	}
	u.trie.init(total)
	for name, id := range u.ids {
		u.trie.add(name, id)
	}
	return u, nil
}

// appendWord finds the best way from the beginning of the word to each of its
// characters.
func (u *unigram) appendWord(dst []uint32, word []byte) []uint32 {
	type node struct {
		score float64
		from  int32
		id    uint32
	}
	var few [64]node
	best := few[:0]
	if len(word) >= len(few) {
		best = make([]node, 0, len(word)+1)
	}
	best = best[:len(word)+1]
	for i := range best {
		best[i] = node{from: -1}
	}
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRune(word[at:])
		here, single := best[at].score, false
		for n, end := uint32(0), at; end < len(word); {
			var id uint32
			if n, id = u.trie.step(n, word[end]); n == 0 {
				break
			}
			end++
			if id == none {
				continue
			}
			if score := here + u.scores[id]; best[end].from < 0 || score > best[end].score {
				best[end] = node{score, int32(at), id}
			}
			single = single || end-at == size
		}
		if end := at + size; !single {
			if score := here + u.low - unknownCost; best[end].from < 0 || score > best[end].score {
				best[end] = node{score, int32(at), u.unk}
			}
		}
		at += size
	}
	begin := len(dst)
	for end := len(word); end > 0; {
		from := int(best[end].from)
		if best[end].id == u.unk {
			// Unknown characters side by side are one.
			for from > 0 && best[from].id == u.unk {
				from = int(best[from].from)
			}
			dst = u.appendUnknown(dst, word[from:end])
		} else {
			dst = append(dst, best[end].id)
		}
		end = from
	}
	slices.Reverse(dst[begin:])
	return dst
}

// appendUnknown appends what unknown characters become, from the end.
func (u *unigram) appendUnknown(dst []uint32, text []byte) []uint32 {
	if id, ok := u.ids[string(text)]; ok {
		return append(dst, id)
	}
	if u.spells {
		begin := len(dst)
		for i := len(text) - 1; i >= 0; i-- {
			id := u.bytes[text[i]]
			if id == none {
				dst = dst[:begin]
				break
			}
			dst = append(dst, id)
		}
		if len(dst) > begin {
			return dst
		}
	}
	if u.unk == none {
		return dst
	}
	return append(dst, u.unk)
}

// trie has the tokens by their bytes: a hash table of nodes and bytes. Node 0 is
// the root.
type trie struct {
	keys  []uint64 // node and byte, plus one
	nodes []uint32 // where they lead
	ids   []uint32 // by node
	shift uint
}

func (t *trie) init(total int) {
	size := max(bits.Len(uint(total))+1, 8)
	t.keys, t.nodes, t.shift = make([]uint64, 1<<size), make([]uint32, 1<<size), uint(64-size)
	t.ids = []uint32{none}
}

func (t *trie) slot(node uint32, b byte) int {
	key := uint64(node)<<8 | uint64(b) + 1
	mask := len(t.keys) - 1
	for i := int(key * 0x9e3779b97f4a7c15 >> t.shift); ; i = (i + 1) & mask {
		if t.keys[i] == 0 || t.keys[i] == key {
			return i
		}
	}
}

func (t *trie) add(name string, id uint32) {
	node := uint32(0)
	for i := range len(name) {
		s := t.slot(node, name[i])
		if t.keys[s] == 0 {
			t.keys[s] = uint64(node)<<8 | uint64(name[i]) + 1
			t.nodes[s] = uint32(len(t.ids))
			t.ids = append(t.ids, none)
		}
		node = t.nodes[s]
	}
	t.ids[node] = id
}

// step goes on by a byte: 0 if no token goes on so.
func (t *trie) step(node uint32, b byte) (next, id uint32) {
	s := t.slot(node, b)
	if t.keys[s] == 0 {
		return 0, none
	}
	return t.nodes[s], t.ids[t.nodes[s]]
}
