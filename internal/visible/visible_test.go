// SPDX-License-Identifier: Apache-2.0

package visible

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "",
		"plain, ünïcode \t and\nlines":      "plain, ünïcode \t and\nlines",
		"\x1b[31mred\x1b[0m":                "^[[31mred^[[0m",
		"\x1b]52;c;aGk=\a":                  "^[]52;c;aGk=^G",
		"\x1b]8;;http://x\x1b\\y\x1b]8;;\a": "^[]8;;http://x^[\\y^[]8;;^G",
		"\x1bP+q544e\x1b\\":                 "^[P+q544e^[\\",
		"\u009b31m\u009d0;t\u009c":          `\u009b31m\u009d0;t\u009c`,
		"\x9b31m \x90q\x9c \xa0\xff":        "\\x9b31m \\x90q\\x9c \xa0\xff",
		"a\b\b\rb\v\f\x00\x7f\x05":          "a^H^H^Mb^K^L^@^?^E",
		"\x1b[?2004h\x1b":                   "^[[?2004h^[",
		"\u202etxt.exe\u2066":               `\u202etxt.exe\u2066`,
		"\u200f\u200b\u00ad 😀 é":            "\u200f\u200b\u00ad 😀 é",
		"\xc2":                              "\xc2",
		"\xc2\x9b":                          `\u009b`,
		"é\xc3":                             "é\xc3",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestIsPlain(t *testing.T) {
	for n := range 20 {
		for at := range n {
			for c := range 256 {
				b := []byte(strings.Repeat("x", n))
				b[at] = byte(c)
				if want := c >= ' ' && c < 0x7f || c == '\t' || c == '\n'; IsPlain(b) != want {
					t.Fatalf("%q is plain: %v", b, !want)
				}
			}
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[0m\u009b\x9b\u202e\t\n")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		for i := 0; i < len(got); {
			c, size := Rune([]byte(got[i:]))
			if IsControl(c) && c != '\t' && c != '\n' {
				t.Fatalf("%q becomes %q", s, got)
			}
			i += size
		}
		if utf8.ValidString(s) && !utf8.ValidString(got) || strings.Count(s, "\n") != strings.Count(got, "\n") || Text(got) != got {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}
