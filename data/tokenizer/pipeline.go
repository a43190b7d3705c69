// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"encoding/json"
	"fmt"
)

// lead is what goes before a text.
type lead uint8

const (
	leadNone lead = iota
	leadAlways
	leadUnlessSpace // a space where the text does not begin with one
)

// pipeline is what happens to a text before and after its pairs are merged: the
// parts of a tokenizer.json besides the model and the added tokens.
type pipeline struct {
	split        Split
	lead         lead
	leadFirst    bool // only before the whole text, not after added tokens
	chars        bool // the vocabulary is over characters
	replace      bool // spaces become marks
	byteFallback bool
	fuseUnk      bool
	ignoreMerges bool
	unkToken     string
	before       []int64 // put around a text by EncodeInput
	after        []int64
	single       []templateItem      // what a model sees of a text
	pair         []templateItem      // and of two, nil if there is no template for them
	norm         func(string) string // what a general pipeline's normalizers do
	marks        bool                // the normalizer makes spaces marks: added tokens that are normalized see it
	strip        bool                // decoding takes off one space
	spellsBytes  bool                // decoding makes bytes of tokens such as <0x41>
	steps        []decodeStep        // nil if decoding is the concatenation of what tokens stand for

	// As the file has them, for Write. All nil in a tokenizer that was trained.
	normalizer, preTokenizer, postProcessor, decoder json.RawMessage
	model, padding                                   json.RawMessage
}

// describe identifies the pipeline.
func (f *pipeline) describe() string {
	return fmt.Sprint(f.split, f.lead, f.leadFirst, f.chars, f.replace, f.byteFallback, f.fuseUnk, f.ignoreMerges, f.unkToken, f.before, f.after)
}

// component is a normalizer, pre-tokenizer, post-processor or decoder of a
// tokenizer.json: the fields of all kinds that are known here.
type component struct {
	Type string `json:"type"`

	Normalizers   []component `json:"normalizers"` // of a Sequence
	Pretokenizers []component `json:"pretokenizers"`
	Processors    []component `json:"processors"`
	Decoders      []component `json:"decoders"`

	Pattern  *pattern `json:"pattern"` // Split, Replace
	Behavior string   `json:"behavior"`
	Invert   bool     `json:"invert"`
	Content  string   `json:"content"` // Replace, Strip
	Start    int      `json:"start"`   // Strip
	Stop     int      `json:"stop"`
	Prepend  string   `json:"prepend"` // Prepend

	StripLeft     *bool  `json:"strip_left"` // Strip of a normalizer
	StripRight    *bool  `json:"strip_right"`
	CharsMap      string `json:"precompiled_charsmap"` // Precompiled
	CleanText     *bool  `json:"clean_text"`           // BertNormalizer
	HandleChinese *bool  `json:"handle_chinese_chars"`
	StripAccents  *bool  `json:"strip_accents"`
	Lowercase     *bool  `json:"lowercase"`

	Delimiter string `json:"delimiter"` // CharDelimiterSplit
	Prefix    string `json:"prefix"`    // WordPiece of a decoder
	Cleanup   *bool  `json:"cleanup"`

	AddPrefixSpace *bool `json:"add_prefix_space"` // ByteLevel; Metaspace of old
	UseRegex       *bool `json:"use_regex"`

	IndividualDigits bool `json:"individual_digits"` // Digits

	Replacement   string  `json:"replacement"` // Metaspace
	PrependScheme *string `json:"prepend_scheme"`
	Split         *bool   `json:"split"`

	Cls *namedToken `json:"cls"` // BertProcessing, RobertaProcessing
	Sep *namedToken `json:"sep"`

	Single        []templatePiece `json:"single"` // TemplateProcessing
	Pair          []templatePiece `json:"pair"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
}

type pattern struct {
	Regex  *string `json:"Regex,omitempty"`
	String *string `json:"String,omitempty"`
}

type templatePiece struct {
	SpecialToken *templateID `json:"SpecialToken"`
	Sequence     *templateID `json:"Sequence"`
}

type templateID struct {
	ID     string `json:"id"`
	TypeID int64  `json:"type_id"`
}

// namedToken is a token with its id, as a list of both.
type namedToken struct {
	Name string
	ID   int64
}

func (n *namedToken) UnmarshalJSON(b []byte) error {
	pair := []any{&n.Name, &n.ID}
	n.ID = -1
	return json.Unmarshal(b, &pair)
}

// parse reads a component; of a Sequence, what it consists of.
func parseComponent(field string, raw json.RawMessage) ([]component, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	var c component
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, formatErr(field, "%v", err)
	}
	return c.flatten(), nil
}

func (c component) flatten() []component {
	if c.Type != "Sequence" {
		return []component{c}
	}
	var all []component
	for _, parts := range [][]component{c.Normalizers, c.Pretokenizers, c.Processors, c.Decoders} {
		for _, p := range parts {
			all = append(all, p.flatten()...)
		}
	}
	return all
}

func isTrue(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

// parsePipeline reads all that is not the model and the added tokens.
func parsePipeline(d *document) (pipeline, error) {
	f := pipeline{normalizer: d.Normalizer, preTokenizer: d.PreTokenizer, postProcessor: d.PostProcessor, decoder: d.Decoder, padding: d.Padding}
	for _, parse := range []func(*document) error{f.parseNormalizer, f.parsePreTokenizer, f.parsePostProcessor, f.parseDecoder} {
		if err := parse(d); err != nil {
			return pipeline{}, err
		}
	}
	f.byteFallback, f.fuseUnk, f.ignoreMerges = d.Model.ByteFallback, d.Model.FuseUnk, d.Model.IgnoreMerges
	if d.Model.UnkToken != nil {
		f.unkToken = *d.Model.UnkToken
	}
	if f.chars && f.ignoreMerges {
		return pipeline{}, formatErr("model.ignore_merges", "must be false for a vocabulary over characters")
	}
	return f, nil
}
