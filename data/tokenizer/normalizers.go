// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer is a step that changes a text before it is split. cuts says that
// the parts of a text become what they become in the whole, where it is parted
// between a letter and a space of ASCII.
type normalizer struct {
	apply func(text []byte) []byte
	cuts  bool
}

// maxParts limits the steps of a normalizer or a pre-tokenizer.
const maxParts = 64

// parseNormalizers reads normalizers of all kinds.
func parseNormalizers(raw json.RawMessage) ([]normalizer, error) {
	const field = "normalizer"
	parts, err := parseComponent(field, raw)
	if err != nil {
		return nil, err
	}
	if len(parts) > maxParts {
		return nil, formatErr(field, "has %d parts, at most %d are supported", len(parts), maxParts)
	}
	var all []normalizer
	for _, c := range parts {
		n, err := c.normalizer(field)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

func (c component) normalizer(field string) (normalizer, error) {
	switch c.Type {
	case "NFC", "NFD", "NFKC", "NFKD":
		form := map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}[c.Type]
		return normalizer{func(text []byte) []byte {
			if form.IsNormal(text) {
				return text
			}
			return form.Bytes(text)
		}, true}, nil
	case "Lowercase":
		return normalizer{lowercase, true}, nil
	case "StripAccents":
		return normalizer{func(text []byte) []byte { return without(text, isMark) }, true}, nil
	case "Nmt":
		return normalizer{nmt, true}, nil
	case "Strip":
		left, right := isTrue(c.StripLeft, false), isTrue(c.StripRight, false)
		return normalizer{func(text []byte) []byte {
			if left {
				text = bytes.TrimLeftFunc(text, unicode.IsSpace)
			}
			if right {
				text = bytes.TrimRightFunc(text, unicode.IsSpace)
			}
			return text
		}, !left && !right}, nil
	case "Prepend":
		return normalizer{func(text []byte) []byte {
			if len(text) == 0 {
				return text
			}
			return append([]byte(c.Prepend), text...)
		}, false}, nil
	case "BertNormalizer":
		return c.bertNormalizer()
	case "Precompiled":
		m, err := newCharsMap(c.CharsMap)
		if err != nil {
			return normalizer{}, formatErr(field+".precompiled_charsmap", "%v", err)
		}
		return normalizer{m.apply, true}, nil
	case "Replace":
		return c.replaceNormalizer(field)
	}
	return normalizer{}, formatErr(field, "%q is not supported", c.Type)
}

func (c component) replaceNormalizer(field string) (normalizer, error) {
	if c.Pattern == nil || c.Pattern.String == nil && c.Pattern.Regex == nil {
		return normalizer{}, formatErr(field, "Replace has no pattern")
	}
	to := []byte(c.Content)
	if len(to) > MaxTokenLen {
		return normalizer{}, formatErr(field, "Replace by %d bytes, at most %d are supported", len(to), MaxTokenLen)
	}
	if s := c.Pattern.String; s != nil {
		if *s == "" {
			return normalizer{}, formatErr(field, "Replace of an empty string is not supported")
		}
		from := []byte(*s)
		// A single space that becomes a mark is what texts are parted at.
		return normalizer{func(text []byte) []byte { return bytes.ReplaceAll(text, from, to) }, *s != " " && !bytes.Contains(from, []byte(" "))}, nil
	}
	re, err := compilePattern(*c.Pattern.Regex)
	if err != nil {
		return normalizer{}, formatErr(field+".pattern", "%v", err)
	}
	return normalizer{func(text []byte) []byte {
		var out []byte
		pos := 0
		for _, m := range re.matches(text) {
			out = append(append(out, text[pos:m[0]]...), to...)
			pos = m[1]
		}
		if pos == 0 {
			return text
		}
		return append(out, text[pos:]...)
	}, *c.Pattern.Regex == " {2,}"}, nil
}

// lowercase makes each character small by itself.
func lowercase(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		b := text[i]
		if b < utf8.RuneSelf {
			if 'A' <= b && b <= 'Z' {
				b += 'a' - 'A'
			}
			out = append(out, b)
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if r == 'İ' {
			out = append(out, "i̇"...)
		} else if n == 1 {
			out = append(out, b)
		} else {
			out = utf8.AppendRune(out, toLower(r))
		}
		i += n
	}
	return out
}

// without drops characters.
func without(text []byte, drop func(r rune) bool) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		r, n := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(text[i:])
		}
		if n == 1 && r >= utf8.RuneSelf || !drop(r) {
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out
}

// nmt drops controls and makes spaces of what is like one, as models for
// translation did.
func nmt(text []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		switch {
		case r >= 1 && r <= 8, r == 0xb, r >= 0xe && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
		case r == 9, r == 0xa, r == 0xc, r == 0xd, r == 0x1680, r >= 0x200b && r <= 0x200f, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			out = append(out, ' ')
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// bertNormalizer is what BERT does to a text.
func (c component) bertNormalizer() (normalizer, error) {
	clean, chinese, small := isTrue(c.CleanText, true), isTrue(c.HandleChinese, true), isTrue(c.Lowercase, true)
	strip := isTrue(c.StripAccents, small)
	return normalizer{func(text []byte) []byte {
		if clean {
			text = cleanText(text)
		}
		ascii := isASCII(text)
		if chinese && !ascii {
			text = aroundChinese(text)
		}
		if strip && !ascii {
			text = without(norm.NFD.Bytes(text), isNonspacing)
		}
		if small {
			text = lowercase(text)
		}
		return text
	}, true}, nil
}

func isASCII(text []byte) bool {
	for _, b := range text {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// cleanText drops controls and makes all spaces the same.
func cleanText(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		b := text[i]
		if b < utf8.RuneSelf {
			switch {
			case b > ' ' && b < 0x7f:
				out = append(out, b)
			case b == ' ' || b == '\t' || b == '\n' || b == '\r':
				out = append(out, ' ')
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError, isOther(r):
		case unicode.IsSpace(r):
			out = append(out, ' ')
		default:
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out
}

// aroundChinese puts spaces around Chinese characters.
func aroundChinese(text []byte) []byte {
	out := make([]byte, 0, len(text)+len(text)/2)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if isChinese(r) {
			out = append(append(append(out, ' '), text[i:i+n]...), ' ')
		} else {
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out
}

func isChinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2b73f ||
		r >= 0x2b740 && r <= 0x2b81f || r >= 0x2b920 && r <= 0x2ceaf || r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
}
