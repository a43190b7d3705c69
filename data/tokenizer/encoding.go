// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"encoding/json"
	"fmt"
)

// Truncation is what is cut where a text, or a pair of texts, is too long.
type Truncation uint8

const (
	LongestFirst Truncation = iota // the longer of two texts, until both are as long
	OnlyFirst                      // the first text
	OnlySecond                     // the second text
)

// EncodeOptions say how texts become what a model sees. The zero value puts the
// special tokens of the tokenizer's file around texts and cuts nothing.
type EncodeOptions struct {
	MaxLength  int        // tokens with the special ones; 0 if any number will do
	Truncation Truncation // of texts that have more
	NoSpecial  bool       // without special tokens around texts
}

// Encoding is what a model sees of a text, or of a pair of texts.
type Encoding struct {
	IDs     []int64
	TypeIDs []int64 // which of the texts a token belongs to, as models like BERT count them
	Special []bool  // it was put around the texts
}

// EncodeText encodes a text: what the Hugging Face libraries give for it.
func (t *Tokenizer) EncodeText(text []byte, o EncodeOptions) (Encoding, error) {
	return t.encoding([][]int64{t.Encode(text)}, t.pipeline.single, o)
}

// EncodePair encodes two texts that belong together, such as a question and a
// passage.
func (t *Tokenizer) EncodePair(first, second []byte, o EncodeOptions) (Encoding, error) {
	if t.pipeline.pair == nil {
		return Encoding{}, fmt.Errorf("tokenizer: the tokenizer's post_processor has no template for a pair of texts")
	}
	return t.encoding([][]int64{t.Encode(first), t.Encode(second)}, t.pipeline.pair, o)
}

func (t *Tokenizer) encoding(texts [][]int64, template []templateItem, o EncodeOptions) (Encoding, error) {
	var around []templateItem
	special := 0
	for _, item := range template {
		if item.text < 0 && o.NoSpecial {
			continue
		}
		around = append(around, item)
		special += len(item.ids)
	}
	if around == nil { // a tokenizer that was trained
		for i := range texts {
			around = append(around, templateItem{text: i, kind: int64(i)})
		}
	}
	if o.MaxLength > 0 {
		if err := truncate(texts, o.MaxLength, special, o.Truncation); err != nil {
			return Encoding{}, err
		}
	}
	var e Encoding
	for _, item := range around {
		ids, put := item.ids, true
		if item.text >= 0 {
			ids, put = texts[item.text], false
		}
		for _, id := range ids {
			e.IDs, e.TypeIDs, e.Special = append(e.IDs, id), append(e.TypeIDs, item.kind), append(e.Special, put)
		}
	}
	return e, nil
}

// truncate cuts texts so that they have at most limit tokens with the special
// ones, as the Hugging Face library does.
func truncate(texts [][]int64, limit, special int, how Truncation) error {
	total := 0
	for _, ids := range texts {
		total += len(ids)
	}
	room := limit - special
	if room < 0 {
		return fmt.Errorf("tokenizer: MaxLength is %d, and there are %d special tokens", limit, special)
	}
	if total <= room {
		return nil
	}
	if how != LongestFirst {
		i := 0
		if how == OnlySecond {
			i = 1
		}
		if i >= len(texts) {
			return fmt.Errorf("tokenizer: there is no second text to cut")
		}
		keep := len(texts[i]) - (total - room)
		if keep <= 0 {
			return fmt.Errorf("tokenizer: the text to cut has %d tokens, and %d must go: nothing would be left", len(texts[i]), total-room)
		}
		texts[i] = texts[i][:keep]
		return nil
	}
	if len(texts) == 1 {
		texts[0] = texts[0][:room]
		return nil
	}
	short, long := 0, 1
	if len(texts[0]) > len(texts[1]) {
		short, long = 1, 0
	}
	n, m := len(texts[short]), 0
	if m = max(n, room-n); n > room {
		m = n
	}
	if n+m > room {
		n, m = room/2, room/2+room%2
	}
	texts[short], texts[long] = texts[short][:n], texts[long][:min(m, len(texts[long]))]
	return nil
}

// Batch are encodings of the same length, row after row.
type Batch struct {
	IDs, TypeIDs, AttentionMask []int64
	Rows, Width                 int
}

// Pad makes encodings as long as the longest, at a multiple of a number, with
// the padding token at the end. multipleOf may be 0.
func (t *Tokenizer) Pad(rows []Encoding, multipleOf int) (Batch, error) {
	b := Batch{Rows: len(rows)}
	equal := true
	for _, r := range rows {
		b.Width = max(b.Width, len(r.IDs))
		equal = equal && len(r.IDs) == len(rows[0].IDs)
	}
	if multipleOf > 1 {
		b.Width = (b.Width + multipleOf - 1) / multipleOf * multipleOf
	}
	pad, ok := t.PadID()
	if !ok && !(equal && len(rows) > 0 && b.Width == len(rows[0].IDs)) {
		return Batch{}, fmt.Errorf("tokenizer: the tokenizer has no padding token")
	}
	n := b.Rows * b.Width
	b.IDs, b.TypeIDs, b.AttentionMask = make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range b.IDs {
		b.IDs[i] = pad
	}
	for i, r := range rows {
		at := i * b.Width
		copy(b.IDs[at:], r.IDs)
		copy(b.TypeIDs[at:], r.TypeIDs)
		for j := range r.IDs {
			b.AttentionMask[at+j] = 1
		}
	}
	return b, nil
}

// Named returns the id of a special token by what it is for, such as pad_token,
// mask_token, cls_token or sep_token: as a model's folder says, or else by the
// names that models give it.
func (t *Tokenizer) Named(purpose string) (int64, bool) {
	if content, ok := t.special[purpose]; ok {
		return t.ID(content)
	}
	for _, name := range map[string][]string{
		"pad_token": {"[PAD]", "<pad>", "<|pad|>"}, "mask_token": {"[MASK]", "<mask>"}, "cls_token": {"[CLS]", "<s>"},
		"sep_token": {"[SEP]", "</s>"}, "unk_token": {"[UNK]", "<unk>"}, "bos_token": {"<s>", "<bos>"}, "eos_token": {"</s>", "<eos>", "<|endoftext|>"},
	}[purpose] {
		for _, a := range t.added.list {
			if a.Content == name {
				return a.ID, true
			}
		}
	}
	return 0, false
}

// PadID returns the token that shorter texts of a batch are filled up with.
func (t *Tokenizer) PadID() (int64, bool) {
	if id, ok := t.Named("pad_token"); ok {
		return id, true
	}
	var p struct {
		ID *int64 `json:"pad_id"`
	}
	if t.pipeline.padding == nil || json.Unmarshal(t.pipeline.padding, &p) != nil || p.ID == nil {
		return 0, false
	}
	return *p.ID, true
}

// SpecialTokens returns the special tokens of a model's folder by what they are
// for, such as bos_token. It is empty for a tokenizer from elsewhere.
func (t *Tokenizer) SpecialTokens() map[string]string {
	all := make(map[string]string, len(t.special))
	for name, content := range t.special {
		all[name] = content
	}
	return all
}
