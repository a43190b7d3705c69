// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// Split is a way to part text into words.
type Split uint8

const (
	SplitCode   Split = iota // by [Pattern], for source code and small vocabularies
	SplitGPT2                // as GPT-2 does
	SplitLlama3              // as Llama 3 and GPT-4 do

	splitQwen2    // the same with single digits
	splitDigits   // as GPT-2 does between single digits
	splitWhole    // not at all
	splitChars    // between characters that no token has side by side
	splitEachMark // the same, and before each mark
)

// String is the name of a split that can be trained with.
func (s Split) String() string {
	switch s {
	case SplitCode:
		return "code"
	case SplitGPT2:
		return "gpt2"
	case SplitLlama3:
		return "llama3"
	}
	return fmt.Sprintf("Split(%d)", uint8(s))
}

// The patterns of the splits over bytes, as tokenizer.json spells them.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// patterns lists every spelling that is known to mean a split.
var patterns = map[string]Split{
	Pattern:     SplitCode,
	patternGPT2: SplitGPT2,
	`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: SplitGPT2,
	patternLlama3: SplitLlama3,
	patternQwen2:  splitQwen2,
}

// mark is what stands for a space in vocabularies over characters: U+2581.
const (
	mark     = "\u2581"
	markRune = '\u2581'
)

// wordEnd returns where the word that starts at i ends; i must be inside text.
// Unless the text is closed there may be more of it, and wordEnd returns -1
// where that could make the word another.
func (t *Tokenizer) wordEnd(text []byte, i int, closed bool) int {
	var end, looked int
	switch t.pipeline.split {
	case SplitCode:
		end = wordEnd(text, i)
		if end == len(text) && !closed {
			return -1
		}
		return end
	case SplitGPT2:
		end, looked = t.kinds.wordGPT2(text, i)
	case SplitLlama3:
		end, looked = t.kinds.wordLlama3(text, i, 3)
	case splitDigits:
		end, looked = t.kinds.wordDigits(text, i)
	case splitQwen2:
		end, looked = t.kinds.wordLlama3(text, i, 1)
	case splitChars, splitEachMark:
		end = t.charWord(text, i)
		looked = end
	default:
		end, looked = len(text), len(text)
	}
	// The character at which it ended, or one that an apostrophe looks for, may
	// be cut off by the end of what there is.
	if !closed && looked+utf8.UTFMax > len(text) {
		return -1
	}
	return end
}

// wordGPT2 returns the end of the word at i by patternGPT2, and how far it
// looked, to a character or two.
func (t *kindTable) wordGPT2(text []byte, i int) (end, looked int) {
	b := text[i]
	if b == '\'' {
		if n := contraction(text[i+1:], false); n > 0 {
			return i + 1 + n, i + 1 + n
		}
	}
	k, n := t.at(text, i)
	if b == ' ' && i+1 < len(text) {
		if k2, n2 := t.at(text, i+1); k2 != kindSpace {
			k, n = k2, 1+n2
		}
	}
	if k != kindSpace {
		end = t.run(text, i+n, k)
		return end, end
	}
	return t.spaces(text, i)
}

// wordDigits is wordGPT2 where every digit is a word, and what is between
// digits is parted as if it were a text of its own.
func (t *kindTable) wordDigits(text []byte, i int) (end, looked int) {
	k, n := t.at(text, i)
	if k == kindNumber {
		return i + n, i + n
	}
	if k == kindSpace {
		run := t.run(text, i, kindSpace)
		if run < len(text) {
			if next, _ := t.at(text, run); next == kindNumber {
				return run, run // the end of a text
			}
		}
	}
	return t.wordGPT2(text, i)
}

// spaces returns the end of a word of spaces: the last one of several goes
// with what follows, unless nothing does.
func (t *kindTable) spaces(text []byte, i int) (end, looked int) {
	run := t.run(text, i, kindSpace)
	if run == len(text) {
		return run, run
	}
	_, last := utf8.DecodeLastRune(text[i:run])
	if run-last > i {
		return run - last, run
	}
	return run, run
}

// wordLlama3 is wordGPT2 for patternLlama3 with a number of digits.
func (t *kindTable) wordLlama3(text []byte, i, digits int) (end, looked int) {
	b := text[i]
	if b == '\'' {
		if n := contraction(text[i+1:], true); n > 0 {
			return i + 1 + n, i + 1 + n
		}
	}
	k, n := t.at(text, i)
	switch k {
	case kindLetter:
		end = t.run(text, i+n, kindLetter)
		return end, end
	case kindNumber:
		end = i + n
		for range digits - 1 {
			if end == len(text) {
				break
			}
			k, n := t.at(text, end)
			if k != kindNumber {
				break
			}
			end += n
		}
		return end, end
	}
	after := kindSpace // of the next character; the end is like a space
	width := 0
	if i+n < len(text) {
		after, width = t.at(text, i+n)
	}
	if after == kindLetter && b != '\r' && b != '\n' {
		end = t.run(text, i+n+width, kindLetter)
		return end, end
	}
	if k == kindOther || b == ' ' && after == kindOther && width > 0 {
		end = t.run(text, i+n, kindOther)
		for end < len(text) && (text[end] == '\r' || text[end] == '\n') {
			end++
		}
		return end, end
	}
	run := t.run(text, i, kindSpace)
	if j := bytes.LastIndexAny(text[i:run], "\r\n"); j >= 0 {
		return i + j + 1, run
	}
	return t.spaces(text, i)
}

// contraction returns the length of an English ending that follows an
// apostrophe. Without regard to case ſ is an s.
func contraction(text []byte, anyCase bool) int {
	if len(text) == 0 {
		return 0
	}
	lower := func(b byte) byte {
		if anyCase && 'A' <= b && b <= 'Z' {
			return b + 'a' - 'A'
		}
		return b
	}
	switch a := lower(text[0]); a {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v', 'l':
		if len(text) > 1 {
			if b := lower(text[1]); a == 'l' && b == 'l' || a != 'l' && b == 'e' {
				return 2
			}
		}
	case 0xc5:
		if anyCase && len(text) > 1 && text[1] == 0xbf {
			return 2
		}
	}
	return 0
}

// markAt returns the length of a space or mark at text[i], 0 if there is none.
func markAt(text []byte, i int) int {
	switch {
	case i >= len(text):
	case text[i] == ' ':
		return 1
	case text[i] == mark[0] && i+2 < len(text) && text[i+1] == mark[1] && text[i+2] == mark[2]:
		return 3
	}
	return 0
}
