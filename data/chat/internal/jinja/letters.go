// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"strings"
	"unicode"
)

// upper is Python's str.upper: some characters become several.
func upper(s string) string {
	var b strings.Builder
	for _, r := range s {
		if more, ok := upperMore[r]; ok {
			b.WriteString(more)
		} else {
			b.WriteRune(unicode.ToUpper(r))
		}
	}
	return b.String()
}

var upperMore = map[rune]string{
	'ß': "SS", 'ŉ': "ʼN", 'ǰ': "J̌", 'ΐ': "Ϊ́", 'ΰ': "Ϋ́", 'և': "ԵՒ", 'ẖ': "H̱", 'ẗ': "T̈", 'ẘ': "W̊", 'ẙ': "Y̊", 'ẚ': "Aʾ",
	'ﬀ': "FF", 'ﬁ': "FI", 'ﬂ': "FL", 'ﬃ': "FFI", 'ﬄ': "FFL", 'ﬅ': "ST", 'ﬆ': "ST",
}

// lower is Python's str.lower, with the sigma that ends a word.
func lower(s string) string {
	runes := []rune(s)
	var b strings.Builder
	for i, r := range runes {
		switch {
		case r == 'İ':
			b.WriteString("i̇")
		case r == 'Σ' && endsWord(runes, i):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// endsWord reports whether letters come before i, and none after it.
func endsWord(s []rune, i int) bool {
	cased := func(r rune) bool { return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) }
	skipped := func(r rune) bool {
		return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) || strings.ContainsRune("'.:·’", r)
	}
	before := i - 1
	for before >= 0 && skipped(s[before]) {
		before--
	}
	after := i + 1
	for after < len(s) && skipped(s[after]) {
		after++
	}
	return before >= 0 && cased(s[before]) && !(after < len(s) && cased(s[after]))
}

func titleRune(r rune) string {
	switch r {
	case 'ß':
		return "Ss"
	case 'ﬁ':
		return "Fi"
	case 'ﬂ':
		return "Fl"
	}
	return string(unicode.ToTitle(r))
}

func capitalize(s string) string {
	n := firstRune(s)
	if n == 0 {
		return s
	}
	return titleRune([]rune(s[:n])[0]) + lower(s)[len(lower(s[:n])):]
}

// title is Python's str.title: a letter after what is none is made large.
func title(s string) string {
	var b strings.Builder
	inside := false
	for _, r := range s {
		cased := unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		if cased && !inside {
			b.WriteString(titleRune(r))
		} else {
			b.WriteString(lower(string(r)))
		}
		inside = cased
	}
	return b.String()
}
