// SPDX-License-Identifier: Apache-2.0

package tokenizer

import "unicode/utf8"

// wordPiece is the model of BERT: a word is the longest token that it begins
// with, and so on with the rest, whose tokens begin with a prefix. A word of
// which a part is no token is unknown as a whole.
type wordPiece struct {
	first, rest map[string]uint32
	unk         uint32
	maxChars    int // of a word that is known
	maxLen      int // of a token, in bytes
}

func newWordPiece(m *model) (*wordPiece, error) {
	w := &wordPiece{first: make(map[string]uint32), rest: make(map[string]uint32), maxChars: 100}
	prefix := "##"
	if m.Prefix != nil {
		prefix = *m.Prefix
	}
	if m.MaxChars != nil {
		w.maxChars = int(min(max(*m.MaxChars, 0), 1<<20))
	}
	for name, id := range m.Vocab {
		w.first[name] = uint32(id)
		if len(name) > len(prefix) && name[:len(prefix)] == prefix {
			w.rest[name[len(prefix):]] = uint32(id)
		}
		w.maxLen = max(w.maxLen, len(name))
	}
	unknown := "[UNK]"
	if m.UnkToken != nil {
		unknown = *m.UnkToken
	}
	id, ok := m.Vocab[unknown]
	if !ok {
		return nil, formatErr("model.unk_token", "%q is not in the vocabulary", unknown)
	}
	w.unk = uint32(id)
	return w, nil
}

func (w *wordPiece) appendWord(dst []uint32, word []byte) []uint32 {
	if len(word) > w.maxChars && utf8.RuneCount(word) > w.maxChars {
		return append(dst, w.unk)
	}
	begin := len(dst)
	table := w.first
	for pos := 0; pos < len(word); {
		end := min(len(word), pos+w.maxLen)
		for ; end > pos; end-- {
			if end < len(word) && !utf8.RuneStart(word[end]) {
				continue
			}
			if id, ok := table[string(word[pos:end])]; ok {
				dst = append(dst, id)
				break
			}
		}
		if end == pos {
			return append(dst[:begin], w.unk)
		}
		pos, table = end, w.rest
	}
	return dst
}

// wordLevel is a model whose tokens are whole words.
type wordLevel struct {
	ids map[string]uint32
	unk uint32 // none if unknown words are left out
}

func newWordLevel(m *model) (*wordLevel, error) {
	w := &wordLevel{ids: make(map[string]uint32, len(m.Vocab)), unk: none}
	for name, id := range m.Vocab {
		w.ids[name] = uint32(id)
	}
	unknown := "<unk>"
	if m.UnkToken != nil {
		unknown = *m.UnkToken
	}
	if id, ok := w.ids[unknown]; ok {
		w.unk = id
		return w, nil
	}
	return nil, formatErr("model.unk_token", "%q is not in the vocabulary", unknown)
}

func (w *wordLevel) appendWord(dst []uint32, word []byte) []uint32 {
	if id, ok := w.ids[string(word)]; ok {
		return append(dst, id)
	}
	return append(dst, w.unk)
}
