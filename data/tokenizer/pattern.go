// SPDX-License-Identifier: Apache-2.0

package tokenizer

// Pattern is how text is split into words before pairs are merged, as a
// regular expression in the syntax of tokenizer.json. Its first alternative
// that matches, as long as it can be, is the next word:
//
//   - a run of letters, digits, underscores and bytes above 0x7f, with one
//     space before it if there is one;
//   - a run of other printing or control characters, likewise with a space
//     before it, and with the line ends and tabs after it;
//   - a run of line ends and tabs;
//   - a run of spaces.
//
// Every byte belongs to exactly one word, so nothing is left between matches.
// Characters above U+007F count as letters whatever they are, which makes the
// classes those of bytes.
const Pattern = ` ?[0-9A-Z_a-z\x{80}-\x{10FFFF}]+| ?[^\t\n\r 0-9A-Z_a-z\x{80}-\x{10FFFF}]+[\t\n\r]*|[\t\n\r]+| +`

type class uint8

const (
	punct class = iota // everything else
	letter
	space
	newline // line ends and tabs
)

var classes = func() (c [256]class) {
	for b := range c {
		switch {
		case b >= 0x80, b == '_', '0' <= b && b <= '9', 'A' <= b && b <= 'Z', 'a' <= b && b <= 'z':
			c[b] = letter
		case b == ' ':
			c[b] = space
		case b == '\t', b == '\n', b == '\r':
			c[b] = newline
		}
	}
	return c
}()

// wordEnd returns where the word that starts at i ends. i must be inside text.
func wordEnd(text []byte, i int) int {
	c := classes[text[i]]
	i++
	if c == space && i < len(text) {
		// One space joins the run after it; several are a word of their own.
		if next := classes[text[i]]; next == letter || next == punct {
			c = next
			i++
		}
	}
	for i < len(text) && classes[text[i]] == c {
		i++
	}
	if c == punct {
		for i < len(text) && classes[text[i]] == newline {
			i++
		}
	}
	return i
}
