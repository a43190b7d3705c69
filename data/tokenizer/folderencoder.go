// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// wordsFile has the tokens of a BERT, one a line, in the order of their ids.
const wordsFile = "vocab.txt"

// readWords reads a vocab.txt, without added tokens.
func readWords(path string) (*document, error) {
	vocab, err := loadFile(path, func(r io.Reader) (map[string]int64, error) {
		vocab := make(map[string]int64)
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 4*MaxTokenLen+64)
		for n := int64(0); lines.Scan(); n++ {
			word := strings.TrimRight(lines.Text(), "\r\n")
			if n >= MaxVocab {
				return nil, formatErr(fmt.Sprintf("line %d", n+1), "more than %d tokens", MaxVocab)
			}
			if old, ok := vocab[word]; ok {
				return nil, formatErr(fmt.Sprintf("line %d", n+1), "%q is on line %d as well", word, old+1)
			}
			vocab[word] = n
		}
		if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
			return nil, formatErr("", "has a line that is too long: is this a %s?", wordsFile)
		} else if err != nil {
			return nil, err
		}
		return vocab, nil
	})
	if err != nil {
		return nil, err
	}
	return &document{Model: model{Type: "WordPiece", Vocab: vocab}}, nil
}

// part is a part of a tokenizer.json that is written.
type part map[string]any

// rebuildEncoder makes of a document what the classes of BERT, RoBERTa, XLM-R
// and Qwen make of its vocabulary.
func (f *folder) rebuildEncoder(d *document, prefix *bool, tokens *folderTokens) error {
	named := func(name string) string { return tokens.named[name].Content }
	var normalizer, pre, post, decoder any
	switch f.class {
	case classBERT:
		var small, chinese, accents *bool
		for key, v := range map[string]any{"do_lower_case": &small, "tokenize_chinese_chars": &chinese, "strip_accents": &accents} {
			if _, err := f.settings.take(key, v); err != nil {
				return err
			}
		}
		if d.Model.Type != "WordPiece" {
			return formatErr("tokenizer_class", "a %s needs a WordPiece, not a %s", f.class, d.Model.Type)
		}
		unknown := named("unk_token")
		d.Model = model{Type: "WordPiece", Vocab: d.Model.Vocab, UnkToken: &unknown}
		normalizer = part{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": isTrue(chinese, true), "strip_accents": accents, "lowercase": isTrue(small, true)}
		pre, decoder = part{"type": "BertPreTokenizer"}, part{"type": "WordPiece", "prefix": "##", "cleanup": true}
		post = d.template([]string{named("cls_token"), "$0", named("sep_token")}, []string{named("cls_token"), "$0", named("sep_token"), "$1", named("sep_token")}, true)
	case classXLMR:
		if d.Model.Type != "Unigram" {
			return formatErr("tokenizer_class", "a %s needs a Unigram, not a %s", f.class, d.Model.Type)
		}
		unk := int64(3)
		d.Model.UnkID, d.Model.ByteFallback = &unk, false
		normalizer = d.charsMap()
		scheme := "always"
		if !isTrue(prefix, true) {
			scheme = "never"
		}
		meta := part{"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": true}
		pre, decoder = part{"type": "Sequence", "pretokenizers": []any{part{"type": "WhitespaceSplit"}, meta}}, meta
		bos, eos := named("bos_token"), named("eos_token")
		post = d.template([]string{bos, "$0", eos}, []string{bos, "$0", eos, eos, "$1", eos}, false)
	default:
		if d.Model.Type != "BPE" {
			return formatErr("tokenizer_class", "a %s needs a BPE, not a %s", f.class, d.Model.Type)
		}
		level := part{"type": "ByteLevel", "add_prefix_space": isTrue(prefix, false), "trim_offsets": true, "use_regex": true}
		d.Model = model{Type: "BPE", Vocab: d.Model.Vocab, Merges: d.Model.Merges}
		decoder = part{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
		if pre = level; f.class == classQwen2 {
			level["use_regex"] = false
			normalizer = part{"type": "NFC"}
			pre = part{"type": "Sequence", "pretokenizers": []any{part{"type": "Split", "pattern": part{"Regex": patternQwen2}, "behavior": "Isolated", "invert": false}, level}}
			break
		}
		cls, sep := named("cls_token"), named("sep_token")
		post = part{"type": "RobertaProcessing", "cls": []any{cls, d.id(cls)}, "sep": []any{sep, d.id(sep)}, "trim_offsets": true, "add_prefix_space": isTrue(prefix, false)}
	}
	for into, v := range map[*json.RawMessage]any{&d.Normalizer: normalizer, &d.PreTokenizer: pre, &d.Decoder: decoder} {
		if *into = nil; v != nil {
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			*into = b
		}
	}
	if post != nil {
		b, err := json.Marshal(post)
		if err != nil {
			return err
		}
		d.PostProcessor = b
	}
	if d.Model.Type == "BPE" {
		return nil
	}
	var err error
	d.Model.raw, err = d.Model.write()
	return err
}

// id is the id of a token, -1 if there is none.
func (d *document) id(content string) int64 {
	if id, ok := d.Model.Vocab[content]; ok {
		return id
	}
	for _, a := range d.AddedTokens {
		if a.Content == content {
			return a.ID
		}
	}
	return -1
}

// template is a TemplateProcessing; $0 and $1 are the texts. With types the
// second text, and what follows it, has the type 1.
func (d *document) template(single, pair []string, types bool) part {
	specials := part{}
	items := func(names []string) []part {
		var out []part
		kind := 0
		for _, name := range names {
			switch name {
			case "$0":
				out = append(out, part{"Sequence": part{"id": "A", "type_id": 0}})
			case "$1":
				if types {
					kind = 1
				}
				out = append(out, part{"Sequence": part{"id": "B", "type_id": kind}})
			default:
				out = append(out, part{"SpecialToken": part{"id": name, "type_id": kind}})
				specials[name] = part{"id": name, "ids": []int64{d.id(name)}, "tokens": []string{name}}
			}
		}
		return out
	}
	return part{"type": "TemplateProcessing", "single": items(single), "pair": items(pair), "special_tokens": specials}
}

// charsMap is the Precompiled of a document's normalizer, nil if it has none.
func (d *document) charsMap() any {
	parts, err := parseComponent("normalizer", d.Normalizer)
	if err != nil {
		return nil
	}
	for _, c := range parts {
		if c.Type == "Precompiled" {
			return part{"type": "Precompiled", "precompiled_charsmap": c.CharsMap}
		}
	}
	return nil
}

// write is a model as a tokenizer.json has it.
func (m *model) write() (json.RawMessage, error) {
	if m.Type == "WordPiece" {
		return marshal(part{"type": m.Type, "unk_token": m.UnkToken, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": m.Vocab}, "")
	}
	list := make([][2]any, len(m.scores))
	for i, s := range m.scores {
		list[i] = [2]any{s.name, s.score}
	}
	return marshal(part{"type": m.Type, "unk_id": m.UnkID, "byte_fallback": m.ByteFallback, "vocab": list}, "")
}
