// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// specialNames are what special tokens are for, in the order in which new ones
// get ids.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// ownTokens are the special tokens of classes whose files name none.
var ownTokens = map[string]map[string]string{
	classGPT2:      {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
	classLlama:     {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
	classCodeLlama: {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "prefix_token": mark + "<PRE>", "middle_token": mark + "<MID>", "suffix_token": mark + "<SUF>", "eot_token": mark + "<EOT>", "fill_token": "<FILL_ME>"},
	classGemma:     {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
}

// codeLlamaNames are what the special tokens of Code Llama are for, besides.
var codeLlamaNames = []string{"prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"}

// folderTokens are the added tokens that a folder's other files list.
type folderTokens struct {
	decoder map[int64]AddedToken // by the id that a file has, which decides their order
	names   []string             // of the special tokens, in order
	named   map[string]AddedToken
	extra   []AddedToken
}

// token reads a token: its content, or an object with its flags.
func (f *folder) token(field string, raw json.RawMessage, special bool) (tok AddedToken, err error) {
	if json.Unmarshal(raw, &tok.Content) == nil {
		return AddedToken{Content: tok.Content, Special: true, bare: true}, nil
	}
	var fields struct {
		Type       string `json:"__type"`
		Content    *string
		SingleWord bool `json:"single_word"`
		LStrip     bool
		RStrip     bool
		Normalized *bool
		Special    bool
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&fields); err != nil || fields.Content == nil || fields.Type != "" && fields.Type != "AddedToken" {
		return tok, formatErr(field, "%.80s is no token", raw)
	}
	special = special || fields.Special
	return AddedToken{
		Content: *fields.Content, SingleWord: fields.SingleWord, LStrip: fields.LStrip, RStrip: fields.RStrip,
		Normalized: isTrue(fields.Normalized, !special), Special: special,
	}, nil
}

func (f *folder) tokenList(field string, raw json.RawMessage, special bool) ([]AddedToken, error) {
	var list []json.RawMessage
	if raw != nil && json.Unmarshal(raw, &list) != nil {
		return nil, formatErr(field, "must be a list of tokens")
	}
	tokens := make([]AddedToken, len(list))
	for i, raw := range list {
		var err error
		if tokens[i], err = f.token(fmt.Sprintf("%s[%d]", field, i), raw, special); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// tokens reads the tokens that a folder's files list.
func (f *folder) tokens(d *document) (*folderTokens, error) {
	if ok, known := slices.Contains([]string{classBackend, classGPT2, classLlama, classCodeLlama, classGemma}, f.class), f.file; !ok || !known && f.class != classGPT2 {
		return nil, f.at(settingsFile, formatErr("tokenizer_class", "%q is not supported: only %s (or PreTrainedTokenizerFast, which takes %s as it is), %s, %s, %s and %s", f.class, classBackend, jsonFile, classGPT2, classLlama, classCodeLlama, classGemma))
	}
	t := &folderTokens{decoder: make(map[int64]AddedToken), named: make(map[string]AddedToken)}
	specific := object{values: make(map[string]json.RawMessage)} // other special tokens, by name
	extra, additional := f.settings.values["extra_special_tokens"], f.settings.values["additional_special_tokens"]
	hasExtra := extra != nil
	if empty(extra) && additional != nil {
		extra, hasExtra, additional = additional, true, nil
	}
	for _, key := range f.settings.keys {
		if v := f.settings.values[key]; strings.HasSuffix(key, "_token") && !slices.Contains(specialNames, key) && isString(v) {
			specific.set(key, v)
		}
	}
	addNames := func(raw json.RawMessage) (bool, error) {
		if len(raw) == 0 || raw[0] != '{' {
			return false, nil
		}
		var o object
		if err := json.Unmarshal(raw, &o); err != nil {
			return true, formatErr("extra_special_tokens", "%v", err)
		}
		for _, key := range o.keys {
			specific.set(key, o.values[key])
		}
		return true, nil
	}
	if ok, err := addNames(extra); err != nil {
		return nil, f.at(settingsFile, err)
	} else if ok {
		extra, hasExtra = nil, false
	}
	var objects []bool // of the tokens of tokenizer_config.json in extra
	if list := []json.RawMessage(nil); extra != nil && json.Unmarshal(extra, &list) == nil {
		for _, raw := range list {
			objects = append(objects, !isString(raw))
		}
	}
	values := make(map[string]json.RawMessage)
	for _, name := range specialNames {
		if v, ok := f.settings.values[name]; ok {
			values[name] = v
		}
	}
	var auto []string // names of others that are found in special_tokens_map.json alone
	inMap := make(map[string]bool)
	if raw, ok := f.settings.values["added_tokens_decoder"]; ok {
		var list map[string]json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, f.at(settingsFile, formatErr("added_tokens_decoder", "must be an object"))
		}
		for key, raw := range list {
			field := fmt.Sprintf("added_tokens_decoder[%q]", key)
			id, err := strconv.ParseInt(strings.TrimSpace(key), 10, 64)
			if err != nil {
				return nil, f.at(settingsFile, formatErr(field, "is no id"))
			}
			if isString(raw) {
				return nil, f.at(settingsFile, formatErr(field, "must be an object"))
			}
			if t.decoder[id], err = f.token(field, raw, false); err != nil {
				return nil, f.at(settingsFile, err)
			}
		}
	} else {
		for _, key := range f.specials.keys {
			v := f.specials.values[key]
			switch {
			case key == "extra_special_tokens":
				if ok, err := addNames(v); err != nil {
					return nil, f.at(specialsFile, err)
				} else if ok {
					continue
				}
				more, err := f.tokenList(key, v, true)
				if err != nil {
					return nil, f.at(specialsFile, err)
				}
				have, err := f.tokenList(key, extra, false)
				if err != nil {
					return nil, f.at(settingsFile, err)
				}
				t.extra, extra, hasExtra = append(have, more...), nil, true
			case key == "additional_special_tokens":
				additional = v
				inMap[key] = true
			case slices.Contains(specialNames, key):
				values[key] = v
				inMap[key] = true
			case strings.HasSuffix(key, "_token"):
				if specific.values[key] == nil {
					auto = append(auto, key)
					values[key] = v
					inMap[key] = true
				}
			}
		}
	}
	if t.extra == nil && !hasExtra && additional != nil {
		extra = additional
	}
	if extra != nil {
		var err error
		if t.extra, err = f.tokenList("extra_special_tokens", extra, false); err != nil {
			return nil, f.at(settingsFile, err)
		}
	}
	// What is special in added_tokens.json: tokens that tokenizer_config.json has as
	// objects are not known to be so.
	special := make(map[string]bool)
	for i, tok := range t.extra {
		special[tok.Content] = special[tok.Content] || hasExtra && (i >= len(objects) || !objects[i])
	}
	for name, raw := range values {
		if string(raw) == "null" {
			continue
		}
		file := settingsFile
		if inMap[name] {
			file = specialsFile
		}
		tok, err := f.token(name, raw, inMap[name])
		if err != nil {
			return nil, f.at(file, err)
		}
		t.named[name] = tok
		if slices.Contains(specialNames, name) && (inMap[name] || isString(raw)) {
			special[tok.Content] = true
		}
	}
	if _, ok := f.settings.values["added_tokens_decoder"]; !ok {
		for content, raw := range f.added.values {
			var id int64
			if err := json.Unmarshal(raw, &id); err != nil {
				return nil, f.at(addedFile, formatErr(content, "must be a number"))
			}
			if other, ok := t.decoder[id]; ok {
				return nil, f.at(addedFile, formatErr("", "id %d is given to two tokens, %q and %q", id, min(content, other.Content), max(content, other.Content)))
			}
			t.decoder[id] = AddedToken{Content: content, Normalized: !special[content], Special: special[content]}
		}
		if f.file {
			for _, a := range d.AddedTokens {
				id := a.ID
				a.ID = 0
				t.decoder[id] = a
			}
		}
	}
	byContent := make(map[string]AddedToken)
	for _, id := range slices.Sorted(maps.Keys(t.decoder)) {
		byContent[t.decoder[id].Content] = t.decoder[id]
	}
	for name, tok := range t.named {
		if a, ok := byContent[tok.Content]; ok && slices.Contains(specialNames, name) {
			t.named[name] = a
		}
	}
	// Those that the class has where the files say nothing.
	listed := make(map[string]bool) // in t.names
	list := func(names ...string) {
		for _, name := range names {
			if !listed[name] {
				listed[name] = true
				t.names = append(t.names, name)
			}
		}
	}
	list(specialNames...)
	add := func(name string, tok AddedToken) {
		t.named[name] = tok
		list(name)
	}
	for _, name := range slices.Concat(specialNames, codeLlamaNames) {
		_, given := values[name]
		if content, ok := ownTokens[f.class][name]; ok && !given {
			add(name, AddedToken{Content: content, Special: true, bare: true})
		}
	}
	list(auto...)
	pad, err := d.padding()
	if err != nil {
		return nil, f.at(jsonFile, formatErr("padding", "%v", err))
	}
	_, given := values["pad_token"]
	if _, own := ownTokens[f.class]["pad_token"]; pad != "" && !given && !own && f.class != classGPT2 {
		add("pad_token", AddedToken{Content: pad, Special: true, bare: true})
	}
	if f.class == classCodeLlama && !hasExtra && t.extra == nil {
		for _, name := range codeLlamaNames {
			t.extra = append(t.extra, t.named[name])
		}
	}
	for _, name := range specific.keys {
		tok, err := f.token(name, specific.values[name], false)
		if err != nil {
			return nil, f.at(settingsFile, err)
		}
		add(name, tok)
	}
	return t, nil
}

// padding returns the token that a tokenizer.json pads with.
func (d *document) padding() (token string, err error) {
	var p struct {
		Token string `json:"pad_token"`
	}
	if d.Padding != nil {
		err = json.Unmarshal(d.Padding, &p)
	}
	return p.Token, err
}

func empty(raw json.RawMessage) bool {
	return raw == nil || string(raw) == "null" || string(raw) == "[]" || string(raw) == "{}"
}

func isString(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// addedList is how the Hugging Face library keeps added tokens.
type addedList struct {
	vocab  map[string]int64
	tokens []AddedToken
	at     map[string]int  // by content
	once   map[string]bool // contents that have been special: they stay so
}

// add adds tokens, or changes what they are if they are there.
func (l *addedList) add(tokens []AddedToken) {
	next := int64(len(l.vocab))
	for _, a := range l.tokens {
		next = max(next, a.ID+1)
	}
	for _, a := range tokens {
		if a.Content == "" {
			continue
		}
		a.bare = false
		l.once[a.Content] = l.once[a.Content] || a.Special
		if i, ok := l.at[a.Content]; ok {
			a.ID, a.spelled = l.tokens[i].ID, l.tokens[i].Normalized || l.tokens[i].spelled
			l.tokens[i] = a
			continue
		}
		id, ok := l.vocab[a.Content]
		if !ok {
			id = next
			next++
		}
		a.ID = id
		l.at[a.Content] = len(l.tokens)
		l.tokens = append(l.tokens, a)
	}
}

// add gives a document the added tokens of its folder, and the special ones that
// are put around a text.
func (f *folder) add(d *document, t *folderTokens) error {
	l := &addedList{vocab: d.Model.Vocab, at: make(map[string]int), once: make(map[string]bool)}
	if f.class == classBackend {
		l.add(d.AddedTokens)
		if len(l.tokens) != len(d.AddedTokens) || !slices.EqualFunc(l.tokens, d.AddedTokens, func(a, b AddedToken) bool { return a.ID == b.ID }) {
			return nil // which is wrong with them, and told so
		}
	}
	var tokens []AddedToken
	there := make(map[string]bool)
	for _, a := range l.tokens {
		there[a.Content] = true
	}
	for _, id := range slices.Sorted(maps.Keys(t.decoder)) {
		tokens = append(tokens, t.decoder[id])
	}
	for _, a := range tokens {
		there[a.Content] = true
	}
	have := make(map[AddedToken]bool) // of tokens, behind those of the decoder
	more := func(tok AddedToken) {
		if !there[tok.Content] && !have[tok] {
			have[tok] = true
			tokens = append(tokens, tok)
		}
	}
	named := make(map[string]bool)
	for _, name := range t.names {
		if tok, ok := t.named[name]; ok {
			named[tok.Content] = true
			more(tok)
		}
	}
	for _, tok := range t.extra {
		more(tok)
	}
	for i := range tokens {
		tokens[i].Special = tokens[i].Special || named[tokens[i].Content]
	}
	l.add(tokens)
	for i := range l.tokens {
		l.tokens[i].Special = l.once[l.tokens[i].Content]
	}
	d.AddedTokens = l.tokens
	return f.around(d, t, l)
}

// around sets what is put around a text where no post-processor says so.
func (f *folder) around(d *document, t *folderTokens, l *addedList) error {
	var bos, eos bool
	for name, v := range map[string]*bool{"add_bos_token": &bos, "add_eos_token": &eos} {
		if _, err := f.settings.take(name, v); err != nil {
			return f.at(settingsFile, err)
		}
	}
	if f.file {
		bos, eos = f.class == classCodeLlama, false
	}
	if !bos && !eos {
		return nil
	}
	type piece map[string]map[string]any
	single, specials := []piece{}, map[string]any{}
	put := func(name string) {
		tok, ok := t.named[name]
		if !ok {
			return
		}
		specials[tok.Content] = map[string]any{"id": tok.Content, "ids": []int64{l.tokens[slices.IndexFunc(l.tokens, func(a AddedToken) bool { return a.Content == tok.Content })].ID}, "tokens": []string{tok.Content}}
		single = append(single, piece{"SpecialToken": {"id": tok.Content, "type_id": 0}})
	}
	if bos {
		put("bos_token")
	}
	single = append(single, piece{"Sequence": {"id": "A", "type_id": 0}})
	if eos {
		put("eos_token")
	}
	var err error
	d.PostProcessor, err = json.Marshal(map[string]any{"type": "TemplateProcessing", "single": single, "pair": append(single, piece{"Sequence": {"id": "B", "type_id": 1}}), "special_tokens": specials})
	return err
}
