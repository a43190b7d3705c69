// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// A value is what Python has: nil for None, bool, int64, *big.Int for what is
// larger (which can be written, not computed with), float64, string, and the
// types below.
type (
	// List is a list, which templates cannot change.
	List []any

	tuple []any
	// markup is what the filter safe makes of a string: what is added to it is
	// escaped.
	markup string
	// undefined is what a name or an attribute without a value is.
	undefined struct{ what string }
	// view is what keys, values and items of a dict are.
	view struct {
		kind  string
		items []any
	}
	// span is a range of numbers.
	span struct{ start, stop, step int64 }
	// generator can be gone through once, as the result of map or select.
	generator struct{ items []any }
	// namespace has attributes that templates can set.
	namespace struct{ vars map[string]any }
	// method is a function, bound to a value or not.
	method struct {
		name string
		call func(x *exec, a *arguments) any
	}
)

// Dict is a dict, with the order of its keys, which templates cannot change.
// Its zero value is empty.
type Dict struct {
	keys   []any
	values map[string]any // by hash
}

// hash gives equal keys the same text.
func hash(key any) (string, bool) {
	switch k := key.(type) {
	case string:
		return "s" + k, true
	case markup:
		return "s" + string(k), true
	case nil:
		return "n", true
	case bool:
		if k {
			return "i1", true
		}
		return "i0", true
	case int64:
		return fmt.Sprint("i", k), true
	case *big.Int:
		return "i" + k.String(), true
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return fmt.Sprint("i", int64(k)), true
		}
		return fmt.Sprint("f", k), true
	case tuple:
		out := "t"
		for _, v := range k {
			h, ok := hash(v)
			if !ok {
				return "", false
			}
			out += fmt.Sprint(len(h), ":", h)
		}
		return out, true
	}
	return "", false
}

// Set gives a key a value. It keeps the place that the key has.
func (d *Dict) Set(key string, v any) { d.set(key, v) }

func (d *Dict) set(key, v any) bool {
	h, ok := hash(key)
	if !ok {
		return false
	}
	if d.values == nil {
		d.values = make(map[string]any)
	}
	if _, ok := d.values[h]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[h] = v
	return true
}

// Get returns the value of a key.
func (d *Dict) Get(key string) (any, bool) { return d.get(key) }

func (d *Dict) get(key any) (any, bool) {
	h, ok := hash(key)
	if !ok {
		return nil, false
	}
	v, ok := d.values[h]
	return v, ok
}

func (d *Dict) value(key any) any {
	v, _ := d.get(key)
	return v
}

// Keys are the keys that are strings, in order.
func (d *Dict) Keys() []string {
	out := make([]string, 0, len(d.keys))
	for _, k := range d.keys {
		if s, ok := k.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// pairs are the keys with their values.
func (d *Dict) pairs() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = tuple{k, d.value(k)}
	}
	return out
}

func (s span) len() int64 {
	switch {
	case s.step > 0 && s.start < s.stop:
		return (s.stop - s.start + s.step - 1) / s.step
	case s.step < 0 && s.start > s.stop:
		return (s.start - s.stop - s.step - 1) / -s.step
	}
	return 0
}

func (s span) items() []any {
	out := make([]any, s.len())
	for i := range out {
		out[i] = s.start + int64(i)*s.step
	}
	return out
}

// typeName is what Python calls the type of a value.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string, markup:
		return "str"
	case List:
		return "list"
	case tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case undefined:
		return "undefined"
	case *generator:
		return "generator"
	case view:
		return "view of a dict"
	case span:
		return "range"
	case *namespace:
		return "namespace"
	case *loop:
		return "loop"
	}
	return "function"
}

// truth is Python's bool of a value.
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case List:
		return len(v) > 0
	case tuple:
		return len(v) > 0
	case *Dict:
		return len(v.keys) > 0
	case view:
		return len(v.items) > 0
	case span:
		return v.len() > 0
	case *loop:
		return len(v.items) > 0
	}
	return true
}

// number returns a value as a number that can be computed with: a bool is one.
func asNumber(v any) (i int64, f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, false, true
		}
		return 0, 0, false, true
	case int64:
		return v, float64(v), false, true
	case float64:
		return 0, v, true, true
	}
	return 0, 0, false, false
}

func asText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

// equal is Python's ==.
func (x *exec) equal(a, b any) bool {
	x.step()
	if s, ok := asText(a); ok {
		t, ok := asText(b)
		return ok && s == t
	}
	if i, f, isFloat, ok := asNumber(a); ok {
		j, g, isFloat2, ok := asNumber(b)
		if !isFloat && !isFloat2 {
			return ok && i == j
		}
		return ok && f == g
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *big.Int:
		b, ok := b.(*big.Int)
		return ok && a.Cmp(b) == 0
	case List:
		b, ok := b.(List)
		return ok && x.equalAll(a, b)
	case tuple:
		b, ok := b.(tuple)
		return ok && x.equalAll(a, b)
	case span:
		b, ok := b.(span)
		return ok && x.equalAll(a.items(), b.items())
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, k := range a.keys {
			if v, ok := b.get(k); !ok || !x.equal(a.value(k), v) {
				return false
			}
		}
		return true
	case *namespace, *loop, *generator, *method:
		return a == b
	}
	return false
}

func (x *exec) equalAll(a, b []any) bool {
	if len(a) != len(b) {
		return false
	}
	defer x.enter()()
	for i := range a {
		if !x.equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// compare is Python's order of two values.
func (x *exec) compare(a, b any) int {
	x.step()
	if s, ok := asText(a); ok {
		if t, ok := asText(b); ok {
			return strings.Compare(s, t)
		}
	}
	if i, f, isFloat, ok := asNumber(a); ok {
		if j, g, isFloat2, ok := asNumber(b); ok {
			switch {
			case !isFloat && !isFloat2 && i < j, (isFloat || isFloat2) && f < g:
				return -1
			case !isFloat && !isFloat2 && i > j, (isFloat || isFloat2) && f > g:
				return 1
			}
			return 0
		}
	}
	l, ok := sequence(a)
	r, ok2 := sequence(b)
	if !ok || !ok2 || typeName(a) != typeName(b) {
		x.fail("%s and %s have no order", typeName(a), typeName(b))
	}
	defer x.enter()()
	for i := range min(len(l), len(r)) {
		if !x.equal(l[i], r[i]) {
			return x.compare(l[i], r[i])
		}
	}
	return len(l) - len(r)
}

// sequence returns the items of a list or tuple.
func sequence(v any) ([]any, bool) {
	switch v := v.(type) {
	case List:
		return v, true
	case tuple:
		return v, true
	}
	return nil, false
}

// items are what a loop over a value goes through.
func (x *exec) items(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case List:
		return v
	case tuple:
		return v
	case *Dict:
		return v.keys
	case view:
		return v.items
	case span:
		x.make(16 * int(v.len()))
		return v.items()
	case *generator:
		items := v.items
		v.items = nil
		return items
	case *loop:
		return v.items
	}
	if s, ok := asText(v); ok {
		x.make(16 * len(s))
		out := make([]any, 0, len(s))
		for i := 0; i < len(s); {
			_, n := utf8.DecodeRuneInString(s[i:])
			out = append(out, s[i:i+n])
			i += n
		}
		return out
	}
	x.fail("%s cannot be gone through", typeName(v))
	return nil
}

// length is Python's len, -1 if the value has none.
func length(v any) int {
	switch v := v.(type) {
	case undefined:
		return 0
	case string:
		return utf8.RuneCountInString(v)
	case markup:
		return utf8.RuneCountInString(string(v))
	case List:
		return len(v)
	case tuple:
		return len(v)
	case *Dict:
		return len(v.keys)
	case view:
		return len(v.items)
	case span:
		return int(v.len())
	case *loop:
		return len(v.items)
	}
	return -1
}

// contains is Python's in.
func (x *exec) contains(in, v any) bool {
	if s, ok := asText(in); ok {
		part, ok := asText(v)
		if !ok {
			x.fail("%s in a string: only a string can be", typeName(v))
		}
		return strings.Contains(s, part)
	}
	if d, ok := in.(*Dict); ok {
		_, ok := d.get(v)
		return ok
	}
	for _, item := range x.items(in) {
		if x.equal(item, v) {
			return true
		}
	}
	return false
}
