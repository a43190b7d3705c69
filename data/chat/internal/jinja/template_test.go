// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func render(source string, variables map[string]any) (string, error) {
	t, err := Parse(source)
	if err != nil {
		return "", err
	}
	out, err := t.Execute(variables, func() time.Time { return time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC) }, true)
	return out.Text, err
}

// TestUnknown checks that what is not known is an error with the line before
// anything is rendered.
func TestUnknown(t *testing.T) {
	for source, want := range map[string]string{
		"a\n{% include 'x' %}":              "line 2: {% include %} is refused: a chat template cannot use other templates",
		"{% import 'x' as y %}":             "{% import %} is refused",
		"{% do x.append(1) %}":              "the block {% do %} is not known",
		"\n\n{{ x | frob }}":                "line 3: the filter |frob is not known",
		"{{ x | map('frob') }}":             "the filter |frob is not known",
		"{{ x | selectattr('a', 'frob') }}": "the test \"is frob\" is not known",
		"{{ x is frob }}":                   "the test \"is frob\" is not known",
		"{{ x.zfill(3) }}":                  "the method .zfill() is not known",
		"{{ frob(1) }}":                     "the function frob() is not known",
		"{{ f(*x) }}":                       "* in a call is not supported",
		"{{ 'a' ":                           "a tag has no end }}",
		"{# a":                              "a comment {# has no end #}",
		"{% for x in y %}":                  "{% for %} has no {% endfor %}",
		"{% endfor %}":                      "{% endfor %} without its beginning",
		"{% if x %}{% endfor %}":            "without its beginning",
		"{{ 1 + }}":                         "unexpected \"}}\" in an expression",
		"{{ x $ y }}":                       "unexpected character '$'",
		"{% break %}":                       "{% break %} outside of a for loop",
		"{% set true = 1 %}":                "true cannot be given a value",
		"{{ 99999999999999999999 }}":        "is too large",
		"{{ x is divisibleby }}":            "takes 1 values, not 0",
		"{{ " + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + " }}": "in each other",
		"{{ " + strings.Repeat("-", 1000) + "1 }}":                            "in each other",
		"{{ x" + strings.Repeat(".x", 5000) + "1 }}":                          "side by side",
		"{{ 1" + strings.Repeat("+1", 5000) + "1 }}":                          "side by side",
	} {
		_, err := Parse(source)
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", source, err, want)
		}
	}
}

// TestLimits checks that no template runs for long or takes much memory.
func TestLimits(t *testing.T) {
	for source, want := range map[string]string{
		"{{ 'a' * 1000000000 }}": "more than",
		"{{ range(1000000) }}":   "a range of more than",
		"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}":                               "steps",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}":                                                              "in each other",
		"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}":                                                      "in each other",
		"{% set ns = namespace(s='aaaaaaaa') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}":       "more than",
		"{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}":              "more than",
		"{% set ns = namespace(s=[1]) %}{% for a in range(9999) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}": "in each other",
		"{% for a in range(99999) %}{{ 'aaaaaaaaaa' * 1000 }}{% endfor %}":                                             "more than",
		"{{ 2 ** 9999999 }}":                               "64 bits",
		"{{ 'a'.replace('', 'aaaaaaaaaa' * 5000000) }}":    "more than",
		"{{ ('a\n' * 1000000) | indent(1000) }}":           "more than",
		"{{ ['a' * 1000] * 1000000 }}":                     "more than",
		"{{ range(99999) | join('aaaaaaaaaa' * 100000) }}": "more than",
	} {
		if _, err := render(source, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	paths, err := filepath.Glob("../../testdata/templates/*.jinja")
	if err != nil || len(paths) == 0 {
		f.Fatal("no templates", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b), `[{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]`)
	}
	f.Fuzz(func(t *testing.T, source, messages string) {
		v, err := Decode([]byte(messages))
		if err != nil {
			v = List{}
		}
		_, _ = render(source, map[string]any{"messages": v, "tools": nil})
	})
}
