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
	classQwen2:     {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
	classBERT:      {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
	classRoBERTa:   robertaTokens,
	classXLMR:      robertaTokens,
	classGemma:     {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
}

var robertaTokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}

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

// tokens reads the tokens that a folder's files list, file after file in the order
// in which transformers lets them count.
func (f *folder) tokens(d *document) (*folderTokens, error) {
	if ok, known := slices.Contains(folderClasses, f.class), f.file; !ok || !known && !slices.Contains([]string{classGPT2, classBERT, classRoBERTa, classQwen2}, f.class) {
		return nil, f.at(settingsFile, formatErr("tokenizer_class", "%q is not supported: only %s (or PreTrainedTokenizerFast, which takes %s as it is) and %s", f.class, classBackend, jsonFile, strings.Join(folderClasses[1:], ", ")))
	}
	r := &tokenReader{
		folder: f, listed: make(map[string]bool), values: make(map[string]json.RawMessage), inMap: make(map[string]bool),
		own:   object{values: make(map[string]json.RawMessage)},
		found: folderTokens{decoder: make(map[int64]AddedToken), named: make(map[string]AddedToken)},
	}
	_, r.decoderGiven = f.settings.values["added_tokens_decoder"]
	for _, read := range []func() error{r.readSettings, r.readDecoder, r.readSpecials, r.readExtra, r.readNamed} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	if !r.decoderGiven {
		if err := r.readAdded(d); err != nil {
			return nil, err
		}
	}
	r.nameDecoded()
	if err := r.complete(d); err != nil {
		return nil, err
	}
	return &r.found, nil
}

// tokenReader reads the tokens of a folder.
type tokenReader struct {
	*folder
	found folderTokens

	decoderGiven bool                       // tokenizer_config.json has added_tokens_decoder, which then counts alone
	values       map[string]json.RawMessage // special tokens, by what they are for
	inMap        map[string]bool            // those of special_tokens_map.json
	own          object                     // special tokens of names that no class knows
	auto         []string                   // names that are found in special_tokens_map.json alone
	listed       map[string]bool            // names that found.names has

	additional json.RawMessage // additional_special_tokens, which extraList goes before
	extraList  json.RawMessage // extra_special_tokens that are still to be read
	hasExtra   bool            // a file has extra_special_tokens, not those by name alone
	objects    []bool          // which of tokenizer_config.json's in extraList are objects
	special    map[string]bool // contents that added_tokens.json adds as special
}

// readSettings reads tokenizer_config.json but for its added_tokens_decoder.
func (r *tokenReader) readSettings() error {
	r.extraList, r.additional = r.settings.values["extra_special_tokens"], r.settings.values["additional_special_tokens"]
	r.hasExtra = r.extraList != nil
	if empty(r.extraList) && r.additional != nil {
		r.extraList, r.hasExtra, r.additional = r.additional, true, nil
	}
	for _, key := range r.settings.keys {
		if v := r.settings.values[key]; strings.HasSuffix(key, "_token") && !slices.Contains(specialNames, key) && isString(v) {
			r.own.set(key, v)
		}
	}
	if ok, err := r.addOwn(r.extraList); err != nil {
		return r.at(settingsFile, err)
	} else if ok {
		r.extraList, r.hasExtra = nil, false
	}
	if list := []json.RawMessage(nil); r.extraList != nil && json.Unmarshal(r.extraList, &list) == nil {
		for _, raw := range list {
			r.objects = append(r.objects, !isString(raw))
		}
	}
	for _, name := range specialNames {
		if v, ok := r.settings.values[name]; ok {
			r.values[name] = v
		}
	}
	return nil
}

// addOwn takes extra_special_tokens that are an object: special tokens by name.
// It reports whether they are one.
func (r *tokenReader) addOwn(raw json.RawMessage) (bool, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return false, nil
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return true, formatErr("extra_special_tokens", "%v", err)
	}
	for _, key := range o.keys {
		r.own.set(key, o.values[key])
	}
	return true, nil
}

// readDecoder reads tokenizer_config.json's added_tokens_decoder.
func (r *tokenReader) readDecoder() error {
	if !r.decoderGiven {
		return nil
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(r.settings.values["added_tokens_decoder"], &list); err != nil {
		return r.at(settingsFile, formatErr("added_tokens_decoder", "must be an object"))
	}
	for key, raw := range list {
		field := fmt.Sprintf("added_tokens_decoder[%q]", key)
		id, err := strconv.ParseInt(strings.TrimSpace(key), 10, 64)
		if err != nil {
			return r.at(settingsFile, formatErr(field, "is no id"))
		}
		if isString(raw) {
			return r.at(settingsFile, formatErr(field, "must be an object"))
		}
		if r.found.decoder[id], err = r.token(field, raw, false); err != nil {
			return r.at(settingsFile, err)
		}
	}
	return nil
}

// readSpecials reads special_tokens_map.json, which counts where there is no
// added_tokens_decoder.
func (r *tokenReader) readSpecials() error {
	if r.decoderGiven {
		return nil
	}
	for _, key := range r.specials.keys {
		v := r.specials.values[key]
		switch {
		case key == "extra_special_tokens":
			if ok, err := r.addOwn(v); err != nil {
				return r.at(specialsFile, err)
			} else if ok {
				continue
			}
			more, err := r.tokenList(key, v, true)
			if err != nil {
				return r.at(specialsFile, err)
			}
			have, err := r.tokenList(key, r.extraList, false)
			if err != nil {
				return r.at(settingsFile, err)
			}
			r.found.extra, r.extraList, r.hasExtra = append(have, more...), nil, true
		case key == "additional_special_tokens":
			r.additional = v
			r.inMap[key] = true
		case slices.Contains(specialNames, key):
			r.values[key] = v
			r.inMap[key] = true
		case strings.HasSuffix(key, "_token"):
			if r.own.values[key] == nil {
				r.auto = append(r.auto, key)
				r.values[key] = v
				r.inMap[key] = true
			}
		}
	}
	return nil
}

// readExtra reads the list of extra tokens, and finds out which of them are
// special in added_tokens.json: tokens that tokenizer_config.json has as objects
// are not known to be so.
func (r *tokenReader) readExtra() error {
	if r.found.extra == nil && !r.hasExtra && r.additional != nil {
		r.extraList = r.additional
	}
	if r.extraList != nil {
		var err error
		if r.found.extra, err = r.tokenList("extra_special_tokens", r.extraList, false); err != nil {
			return r.at(settingsFile, err)
		}
	}
	r.special = make(map[string]bool)
	for i, tok := range r.found.extra {
		r.special[tok.Content] = r.special[tok.Content] || r.hasExtra && (i >= len(r.objects) || !r.objects[i])
	}
	return nil
}

// readNamed reads the tokens that have a name, such as pad_token.
func (r *tokenReader) readNamed() error {
	for name, raw := range r.values {
		if string(raw) == "null" {
			continue
		}
		file := settingsFile
		if r.inMap[name] {
			file = specialsFile
		}
		tok, err := r.token(name, raw, r.inMap[name])
		if err != nil {
			return r.at(file, err)
		}
		r.found.named[name] = tok
		if slices.Contains(specialNames, name) && (r.inMap[name] || isString(raw)) {
			r.special[tok.Content] = true
		}
	}
	return nil
}

// readAdded reads added_tokens.json, and after it the added tokens of
// tokenizer.json.
func (r *tokenReader) readAdded(d *document) error {
	for content, raw := range r.added.values {
		var id int64
		if err := json.Unmarshal(raw, &id); err != nil {
			return r.at(addedFile, formatErr(content, "must be a number"))
		}
		if other, ok := r.found.decoder[id]; ok {
			return r.at(addedFile, formatErr("", "id %d is given to two tokens, %q and %q", id, min(content, other.Content), max(content, other.Content)))
		}
		r.found.decoder[id] = AddedToken{Content: content, Normalized: !r.special[content], Special: r.special[content]}
	}
	if r.file {
		for _, a := range d.AddedTokens {
			id := a.ID
			a.ID = 0
			r.found.decoder[id] = a
		}
	}
	return nil
}

// nameDecoded gives the tokens of known names the flags that the decoder has for
// their contents.
func (r *tokenReader) nameDecoded() {
	byContent := make(map[string]AddedToken)
	for _, id := range slices.Sorted(maps.Keys(r.found.decoder)) {
		byContent[r.found.decoder[id].Content] = r.found.decoder[id]
	}
	for name, tok := range r.found.named {
		if a, ok := byContent[tok.Content]; ok && slices.Contains(specialNames, name) {
			r.found.named[name] = a
		}
	}
}

// complete puts the names in order, with the tokens that the class has where the
// files say nothing.
func (r *tokenReader) complete(d *document) error {
	r.list(specialNames...)
	for _, name := range slices.Concat(specialNames, codeLlamaNames) {
		_, given := r.values[name]
		if content, ok := ownTokens[r.class][name]; ok && !given {
			r.name(name, AddedToken{Content: content, Special: true, bare: true})
		}
	}
	r.list(r.auto...)
	pad, err := d.padding()
	if err != nil {
		return r.at(jsonFile, formatErr("padding", "%v", err))
	}
	_, given := r.values["pad_token"]
	if _, own := ownTokens[r.class]["pad_token"]; pad != "" && !given && !own && r.class != classGPT2 {
		r.name("pad_token", AddedToken{Content: pad, Special: true, bare: true})
	}
	if r.class == classCodeLlama && !r.hasExtra && r.found.extra == nil {
		for _, name := range codeLlamaNames {
			r.found.extra = append(r.found.extra, r.found.named[name])
		}
	}
	for _, name := range r.own.keys {
		tok, err := r.token(name, r.own.values[name], false)
		if err != nil {
			return r.at(settingsFile, err)
		}
		r.name(name, tok)
	}
	return nil
}

// list puts names behind those that are listed already.
func (r *tokenReader) list(names ...string) {
	for _, name := range names {
		if !r.listed[name] {
			r.listed[name] = true
			r.found.names = append(r.found.names, name)
		}
	}
}

// name gives a name its token.
func (r *tokenReader) name(name string, tok AddedToken) {
	r.found.named[name] = tok
	r.list(name)
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
