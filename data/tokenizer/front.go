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

// front is what happens to a text before and after its pairs are merged: the
// parts of a tokenizer.json besides the model and the added tokens.
type front struct {
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
	marks        bool         // the normalizer makes spaces marks: added tokens that are normalized see it
	strip        bool         // decoding takes off one space
	spellsBytes  bool         // decoding makes bytes of tokens such as <0x41>
	steps        []decodeStep // nil if decoding is the concatenation of what tokens stand for

	// As the file has them, for Write. All nil in a tokenizer that was trained.
	normalizer, preTokenizer, postProcessor, decoder json.RawMessage
}

// describe identifies the front.
func (f *front) describe() string {
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

	AddPrefixSpace *bool `json:"add_prefix_space"` // ByteLevel; Metaspace of old
	UseRegex       *bool `json:"use_regex"`

	IndividualDigits bool `json:"individual_digits"` // Digits

	Replacement   string  `json:"replacement"` // Metaspace
	PrependScheme *string `json:"prepend_scheme"`
	Split         *bool   `json:"split"`

	Single        []templatePiece `json:"single"` // TemplateProcessing
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
}

type pattern struct {
	Regex  *string `json:"Regex,omitempty"`
	String *string `json:"String,omitempty"`
}

type templatePiece struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
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

// parseFront reads all that is not the model and the added tokens.
func parseFront(d *document) (front, error) {
	f := front{normalizer: d.Normalizer, preTokenizer: d.PreTokenizer, postProcessor: d.PostProcessor, decoder: d.Decoder}
	for _, parse := range []func(*document) error{f.parseNormalizer, f.parsePreTokenizer, f.parsePostProcessor, f.parseDecoder} {
		if err := parse(d); err != nil {
			return front{}, err
		}
	}
	f.byteFallback, f.fuseUnk, f.ignoreMerges = d.Model.ByteFallback, d.Model.FuseUnk, d.Model.IgnoreMerges
	if d.Model.UnkToken != nil {
		f.unkToken = *d.Model.UnkToken
	}
	if f.chars && f.ignoreMerges {
		return front{}, formatErr("model.ignore_merges", "must be false for a vocabulary over characters")
	}
	return f, nil
}

func (f *front) parseNormalizer(d *document) error {
	const field = "normalizer"
	parts, err := parseComponent(field, d.Normalizer)
	if err != nil {
		return err
	}
	for i, c := range parts {
		switch {
		case c.Type == "Prepend" && c.Prepend == mark && i == 0:
			f.lead = leadAlways
		case c.Type == "Replace" && c.Pattern != nil && c.Pattern.String != nil && *c.Pattern.String == " " && c.Content == mark:
			f.replace, f.marks = true, true
		default:
			return formatErr(field, "%s is not supported: only Prepend of %q and Replace of a space by it", c.Type, mark)
		}
	}
	if f.lead == leadAlways && !f.replace {
		return formatErr(field, "Prepend without Replace is not supported")
	}
	return nil
}

func (f *front) parsePreTokenizer(d *document) error {
	const field = "pre_tokenizer"
	parts, err := parseComponent(field, d.PreTokenizer)
	if err != nil {
		return err
	}
	kinds := ""
	for _, c := range parts {
		kinds += c.Type + " "
	}
	switch kinds {
	case "":
		f.chars, f.split = true, splitChars
		return nil
	case "Split ":
		// Nothing is left of the spaces that it splits at.
		if c := parts[0]; f.replace && c.Pattern != nil && c.Pattern.String != nil && *c.Pattern.String == " " {
			f.chars, f.split = true, splitChars
			return nil
		}
	case "Metaspace ":
		return f.parseMetaspace(parts[0])
	case "ByteLevel ":
		f.split = splitWhole
		if isTrue(parts[0].UseRegex, true) {
			f.split = SplitGPT2
		}
		if isTrue(parts[0].AddPrefixSpace, true) {
			f.lead = leadUnlessSpace
		}
		return f.overBytes()
	case "Digits ByteLevel ":
		if !parts[0].IndividualDigits || !isTrue(parts[1].UseRegex, true) || isTrue(parts[1].AddPrefixSpace, true) {
			return formatErr(field, "Digits is supported with individual_digits only, before a ByteLevel with use_regex and without add_prefix_space")
		}
		f.split = splitDigits
		return f.overBytes()
	case "Split ByteLevel ":
		c, level := parts[0], parts[1]
		part := func(i int) string { return fmt.Sprintf("%s.pretokenizers[%d]", field, i) }
		if c.Pattern == nil || c.Pattern.Regex == nil {
			return formatErr(part(0)+".pattern", "must be a Regex")
		}
		var ok bool
		if f.split, ok = patterns[*c.Pattern.Regex]; !ok {
			return formatErr(part(0)+".pattern", "%q is not supported: only this package's own and those of GPT-2, GPT-4, Llama 3 and Qwen 2", *c.Pattern.Regex)
		}
		// The patterns match everything, so to keep what matches is the same.
		if !(c.Behavior == "Isolated" && !c.Invert || c.Behavior == "Removed" && c.Invert) {
			return formatErr(part(0), "behavior must be Isolated and invert false")
		}
		if isTrue(level.UseRegex, true) || isTrue(level.AddPrefixSpace, true) {
			return formatErr(part(1), "use_regex and add_prefix_space must be false after a Split")
		}
		return f.overBytes()
	}
	return formatErr(field, "[%s] is not supported: only ByteLevel, Digits or Split and ByteLevel, Metaspace, or none", kinds[:len(kinds)-1])
}

func (f *front) overBytes() error {
	if f.replace {
		return formatErr("normalizer", "must be null for a vocabulary over bytes")
	}
	return nil
}

func (f *front) parseMetaspace(c component) error {
	const field = "pre_tokenizer"
	if c.Replacement != mark {
		return formatErr(field, "replacement is %q, only %q is supported", c.Replacement, mark)
	}
	scheme, err := c.prependScheme(field)
	if err != nil {
		return err
	}
	if f.lead != leadNone && scheme != "never" {
		return formatErr(field, "Metaspace that prepends after a normalizer that does is not supported")
	}
	switch scheme {
	case "always":
		f.lead = leadUnlessSpace
	case "first":
		f.lead, f.leadFirst = leadUnlessSpace, true
	}
	f.chars, f.replace, f.split = true, true, splitChars
	if isTrue(c.Split, true) {
		f.split = splitEachMark
	}
	return nil
}

// prependScheme is where a Metaspace puts a mark before a text: always, first or
// never.
func (c component) prependScheme(field string) (string, error) {
	scheme := "always"
	if c.PrependScheme != nil {
		scheme = *c.PrependScheme
	}
	switch {
	case scheme != "always" && scheme != "first" && scheme != "never":
		return "", formatErr(field, "prepend_scheme %q is not known", scheme)
	case isTrue(c.AddPrefixSpace, true):
		return scheme, nil
	case c.PrependScheme != nil && scheme != "never":
		return "", formatErr(field, "add_prefix_space is false and prepend_scheme is %q: they contradict each other", scheme)
	}
	return "never", nil
}

func (f *front) parsePostProcessor(d *document) error {
	const field = "post_processor"
	parts, err := parseComponent(field, d.PostProcessor)
	if err != nil {
		return err
	}
	for _, c := range parts {
		switch c.Type {
		case "ByteLevel": // about offsets only
		case "TemplateProcessing":
			if f.before != nil || f.after != nil {
				return formatErr(field, "more than one TemplateProcessing is not supported")
			}
			seen := false
			for _, p := range c.Single {
				switch {
				case p.Sequence != nil && p.Sequence.ID == "A" && !seen:
					seen = true
				case p.SpecialToken != nil:
					s, ok := c.SpecialTokens[p.SpecialToken.ID]
					if !ok {
						return formatErr(field, "special token %q is not explained", p.SpecialToken.ID)
					}
					if seen {
						f.after = append(f.after, s.IDs...)
					} else {
						f.before = append(f.before, s.IDs...)
					}
				default:
					return formatErr(field, "the template for one text has a piece that is not supported")
				}
			}
			if !seen {
				return formatErr(field, "the template for one text does not contain it")
			}
		default:
			return formatErr(field, "%s is not supported: only ByteLevel and TemplateProcessing", c.Type)
		}
	}
	return nil
}
