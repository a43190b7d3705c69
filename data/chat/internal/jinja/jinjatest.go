// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"math/big"
	"unicode"
)

// testFunc is a test such as "is defined", with the number of values that it
// takes besides.
type testFunc struct {
	args int
	run  func(x *exec, v any, args []any) bool
}

// tests are the tests by name.
func tests() map[string]testFunc {
	plain := func(f func(v any) bool) testFunc {
		return testFunc{0, func(x *exec, v any, args []any) bool { return f(v) }}
	}
	compared := func(op string) testFunc {
		return testFunc{1, func(x *exec, v any, args []any) bool { return x.holds(op, v, args[0]) }}
	}
	divisible := func(x *exec, v any, by int64) bool {
		i, _, isFloat, ok := asNumber(v)
		if !ok || isFloat || by == 0 {
			x.fail("a %s has no remainder here", typeName(v))
		}
		return i%by == 0
	}
	table := map[string]testFunc{
		"defined":   plain(func(v any) bool { _, ok := v.(undefined); return !ok }),
		"undefined": plain(func(v any) bool { _, ok := v.(undefined); return ok }),
		"none":      plain(func(v any) bool { return v == nil }),
		"boolean":   plain(func(v any) bool { _, ok := v.(bool); return ok }),
		"true":      plain(func(v any) bool { b, ok := v.(bool); return ok && b }),
		"false":     plain(func(v any) bool { b, ok := v.(bool); return ok && !b }),
		"string":    plain(func(v any) bool { _, ok := asText(v); return ok }),
		"mapping":   plain(func(v any) bool { _, ok := v.(*Dict); return ok }),
		"integer":   plain(isInteger),
		"float":     plain(func(v any) bool { _, ok := v.(float64); return ok }),
		"number":    plain(func(v any) bool { _, _, _, ok := asNumber(v); return ok || isInteger(v) }),
		"callable": plain(func(v any) bool {
			switch v.(type) {
			case *method, *function, *loop:
				return true
			}
			return false
		}),
		"escaped": plain(func(v any) bool { _, ok := v.(markup); return ok }),
		"lower":   {0, func(x *exec, v any, args []any) bool { return islower(x.str(v)) }},
		"upper":   {0, func(x *exec, v any, args []any) bool { return isupper(x.str(v)) }},
		"iterable": plain(func(v any) bool {
			_, ok := v.(*generator)
			return ok || length(v) >= 0
		}),
		"sequence": plain(func(v any) bool {
			switch v.(type) {
			case view, *loop:
				return false
			}
			return length(v) >= 0
		}),
		"odd":         {0, func(x *exec, v any, args []any) bool { return !divisible(x, v, 2) }},
		"even":        {0, func(x *exec, v any, args []any) bool { return divisible(x, v, 2) }},
		"divisibleby": {1, func(x *exec, v any, args []any) bool { n, _, _, _ := asNumber(args[0]); return divisible(x, v, n) }},
		"sameas":      {1, func(x *exec, v any, args []any) bool { return typeName(v) == typeName(args[0]) && x.equal(v, args[0]) }},
		"in":          compared("in"), "eq": compared("=="), "ne": compared("!="), "lt": compared("<"), "le": compared("<="), "gt": compared(">"), "ge": compared(">="),
		"filter": {0, func(x *exec, v any, args []any) bool { s, _ := asText(v); _, ok := x.known.filters[s]; return ok }},
		"test":   {0, func(x *exec, v any, args []any) bool { s, _ := asText(v); _, ok := x.known.tests[s]; return ok }},
	}
	for alias, name := range map[string]string{"equalto": "eq", "lessthan": "lt", "greaterthan": "gt"} {
		table[alias] = table[name]
	}
	return table
}

func isInteger(v any) bool {
	switch v.(type) {
	case int64, *big.Int:
		return true
	}
	return false
}

func islower(s string) bool { return s != upper(s) && s == lower(s) }
func isupper(s string) bool { return s != lower(s) && s == upper(s) }

// isWordRune tells the characters of \w.
func isWordRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }
