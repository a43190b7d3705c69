// SPDX-License-Identifier: Apache-2.0

package tokenizer

import "fmt"

// parsePreTokenizer reads how a text is split into words; split.go has the ways.
func (f *pipeline) parsePreTokenizer(d *document) error {
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

func (f *pipeline) overBytes() error {
	if f.replace {
		return formatErr("normalizer", "must be null for a vocabulary over bytes")
	}
	return nil
}

func (f *pipeline) parseMetaspace(c component) error {
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
