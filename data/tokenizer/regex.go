// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// expression is a pattern of a tokenizer.json, in the syntax of Oniguruma, which
// is matched by trying alternatives in order. It has what patterns of published
// tokenizers have: classes, repeated classes, alternatives, and (?!\S), which
// says that no character but a space follows.
type expression struct{ match matcher }

// matcher returns where a match that begins at i ends, given what must match
// after it; -1 if there is none.
type matcher func(text []byte, i int, then func(i int) int) int

// knownPatterns are patterns by which a word begins at each space between
// letters: of GPT-4o, of models of Mistral, and the last of DeepSeek's three. The
// other two, of numbers and of characters of China and Japan, do nothing there.
var knownPatterns = map[string]bool{
	`\p{N}{1,3}`:   false,
	`[一-龥぀-ゟ゠-ヿ]+`: false,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: true,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`:                                                                true,
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+":                                                                                                                        true,
}

// Limits of a pattern.
const (
	maxPattern = 4096 // bytes
	maxRepeats = 4    // without limit, one after the other
	maxCount   = 64   // in braces
)

// noSpaceFollows stands for (?!\S) while a pattern is read.
const noSpaceFollows = '\U0010fffe'

// compilePattern reads a pattern, or says what of it is not known.
func compilePattern(pattern string) (*expression, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("the pattern has %d bytes, at most %d are supported", len(pattern), maxPattern)
	}
	if strings.ContainsRune(pattern, noSpaceFollows) {
		return nil, fmt.Errorf("the pattern has a character that is not supported")
	}
	plain, err := translate(pattern)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", pattern, err)
	}
	re, err := syntax.Parse(plain, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q is not supported: %w", pattern, err)
	}
	c := &patternCompiler{}
	m, err := c.compile(re)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", pattern, err)
	}
	return &expression{m}, nil
}

// translate writes a pattern in Go's syntax, with the classes of Unicode.
func translate(pattern string) (string, error) {
	pattern = strings.ReplaceAll(pattern, `(?!\S)`, string(noSpaceFollows))
	for _, other := range []string{"(?!", "(?=", "(?<", "(?>", "&&", "[[:", `\p{^`} {
		if strings.Contains(pattern, other) {
			return "", fmt.Errorf("%s is not supported", other)
		}
	}
	var b strings.Builder
	inClass := false
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		if c != '\\' || i+1 == len(pattern) {
			switch {
			case c == '[' && inClass:
				return "", fmt.Errorf("a class within a class is not supported")
			case !inClass && strings.IndexByte("?*+", c) >= 0 && strings.HasPrefix(pattern[i+1:], "+"):
				return "", fmt.Errorf("%c+ is not supported", c)
			}
			inClass = (inClass || c == '[') && c != ']'
			b.WriteByte(c)
			continue
		}
		i++
		rest := pattern[i:]
		class := ""
		switch {
		case rest[0] == 's':
			class = spaceClass
		case strings.HasPrefix(rest, "p{L}"):
			class = `\p{L}` + rangesOf(newLetters)
			i += 3
		case strings.HasPrefix(rest, "p{N}"):
			class = `\p{N}` + rangesOf(newNumbers)
			i += 3
		case rest[0] == 'd':
			class = `\p{Nd}`
		case rest[0] == 'S' && !inClass:
			b.WriteString("[^" + spaceClass + "]")
			continue
		case strings.ContainsRune("wWSDbBAzZhHGKXR123456789PkgQE", rune(rest[0])):
			return "", fmt.Errorf("\\%c is not supported here", rest[0])
		default:
			b.WriteByte('\\')
			b.WriteByte(rest[0])
			continue
		}
		if !inClass {
			class = "[" + class + "]"
		}
		b.WriteString(class)
	}
	return b.String(), nil
}

type patternCompiler struct{ repeats int }

func (c *patternCompiler) compile(re *syntax.Regexp) (matcher, error) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return func(_ []byte, i int, then func(int) int) int { return then(i) }, nil
	case syntax.OpCapture:
		return c.compile(re.Sub[0])
	case syntax.OpAlternate:
		return c.alternate(re)
	case syntax.OpConcat:
		return c.concat(re.Sub)
	case syntax.OpQuest:
		return c.optional(re)
	case syntax.OpLiteral:
		if len(re.Rune) == 1 && re.Rune[0] == noSpaceFollows {
			return func(text []byte, i int, then func(int) int) int {
				if i < len(text) {
					if r, _ := utf8.DecodeRune(text[i:]); !unicode.IsSpace(r) {
						return -1
					}
				}
				return then(i)
			}, nil
		}
		if i := strings.IndexRune(string(re.Rune), noSpaceFollows); i >= 0 {
			var parts []*syntax.Regexp
			for _, r := range re.Rune {
				parts = append(parts, &syntax.Regexp{Op: syntax.OpLiteral, Flags: re.Flags, Rune: []rune{r}})
			}
			return c.concat(parts)
		}
		return literal(re), nil
	case syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		return c.repeat(re)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		is, err := classOf(re)
		return func(text []byte, i int, then func(int) int) int {
			if n := is(text, i); n > 0 {
				return then(i + n)
			}
			return -1
		}, err
	}
	return nil, fmt.Errorf("%s is not supported", re)
}

func (c *patternCompiler) alternate(re *syntax.Regexp) (matcher, error) {
	all := make([]matcher, len(re.Sub))
	most := 0
	for i, sub := range re.Sub {
		inner := patternCompiler{}
		m, err := inner.compile(sub)
		if err != nil {
			return nil, err
		}
		all[i], most = m, max(most, inner.repeats)
	}
	if c.repeats += most; c.repeats > maxRepeats {
		return nil, fmt.Errorf("more than %d repeated classes one after the other are not supported", maxRepeats)
	}
	return func(text []byte, i int, then func(int) int) int {
		for _, m := range all {
			if end := m(text, i, then); end >= 0 {
				return end
			}
		}
		return -1
	}, nil
}

func (c *patternCompiler) concat(subs []*syntax.Regexp) (matcher, error) {
	all := make([]matcher, len(subs))
	for i, sub := range subs {
		var err error
		if all[i], err = c.compile(sub); err != nil {
			return nil, err
		}
	}
	m := all[len(all)-1]
	for i := len(all) - 2; i >= 0; i-- {
		first, rest := all[i], m
		m = func(text []byte, i int, then func(int) int) int {
			return first(text, i, func(j int) int { return rest(text, j, then) })
		}
	}
	return m, nil
}

func (c *patternCompiler) optional(re *syntax.Regexp) (matcher, error) {
	m, err := c.compile(re.Sub[0])
	lazy := re.Flags&syntax.NonGreedy != 0
	return func(text []byte, i int, then func(int) int) int {
		if lazy {
			if end := then(i); end >= 0 {
				return end
			}
			return m(text, i, then)
		}
		if end := m(text, i, then); end >= 0 {
			return end
		}
		return then(i)
	}, err
}

// repeat is a class any number of times: as many as there are, then fewer.
func (c *patternCompiler) repeat(re *syntax.Regexp) (matcher, error) {
	low, high := re.Min, re.Max
	switch re.Op {
	case syntax.OpStar:
		low, high = 0, -1
	case syntax.OpPlus:
		low, high = 1, -1
	}
	if high < 0 {
		if c.repeats++; c.repeats > maxRepeats {
			return nil, fmt.Errorf("more than %d repeated classes one after the other are not supported", maxRepeats)
		}
	}
	if max(low, high) > maxCount || re.Flags&syntax.NonGreedy != 0 {
		return nil, fmt.Errorf("%s is not supported", re)
	}
	is, err := classOf(re.Sub[0])
	if err != nil {
		return nil, fmt.Errorf("only characters and classes can be repeated, not %s", re.Sub[0])
	}
	return func(text []byte, i int, then func(int) int) int {
		n, j := 0, i
		for high < 0 || n < high {
			size := is(text, j)
			if size == 0 {
				break
			}
			n++
			j += size
		}
		for ; n >= low; n-- {
			if end := then(j); end >= 0 {
				return end
			}
			if n > 0 {
				_, size := utf8.DecodeLastRune(text[i:j])
				j -= size
			}
		}
		return -1
	}, nil
}

// classOf returns the length of the character at i if it is of a class, else 0.
func classOf(re *syntax.Regexp) (func(text []byte, i int) int, error) {
	var has func(r rune) bool
	switch {
	case re.Op == syntax.OpAnyChar:
		has = func(rune) bool { return true }
	case re.Op == syntax.OpAnyCharNotNL:
		has = func(r rune) bool { return r != '\n' }
	case re.Op == syntax.OpCharClass:
		ranges := re.Rune
		has = func(r rune) bool {
			low, high := 0, len(ranges)/2
			for low < high {
				mid := (low + high) / 2
				switch {
				case r < ranges[2*mid]:
					high = mid
				case r > ranges[2*mid+1]:
					low = mid + 1
				default:
					return true
				}
			}
			return false
		}
	case re.Op == syntax.OpLiteral && len(re.Rune) == 1 && re.Rune[0] != noSpaceFollows:
		has = func(r rune) bool { return r == re.Rune[0] || re.Flags&syntax.FoldCase != 0 && folds(r, re.Rune[0]) }
	default:
		return nil, fmt.Errorf("%s is no class", re)
	}
	var ascii [utf8.RuneSelf]bool
	for r := range ascii {
		ascii[r] = has(rune(r))
	}
	return func(text []byte, i int) int {
		if i >= len(text) {
			return 0
		}
		if b := text[i]; b < utf8.RuneSelf {
			if ascii[b] {
				return 1
			}
			return 0
		}
		if r, n := utf8.DecodeRune(text[i:]); has(r) {
			return n
		}
		return 0
	}, nil
}

// folds reports whether two characters are the same without regard to case.
func folds(a, b rune) bool {
	for r := unicode.SimpleFold(a); r != a; r = unicode.SimpleFold(r) {
		if r == b {
			return true
		}
	}
	return a == b
}

func literal(re *syntax.Regexp) matcher {
	fold := re.Flags&syntax.FoldCase != 0
	return func(text []byte, i int, then func(int) int) int {
		for _, want := range re.Rune {
			if i >= len(text) {
				return -1
			}
			r, n := utf8.DecodeRune(text[i:])
			if r != want && !(fold && folds(r, want)) {
				return -1
			}
			i += n
		}
		return then(i)
	}
}

// matches returns the matches in a text, from left to right.
func (e *expression) matches(text []byte) [][2]int {
	var out [][2]int
	end := func(i int) int { return i }
	for i := 0; i < len(text); {
		if j := e.match(text, i, end); j > i {
			out = append(out, [2]int{i, j})
			i = j
			continue
		}
		_, n := utf8.DecodeRune(text[i:])
		i += n
	}
	return out
}
