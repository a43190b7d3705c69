// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

type filterFunc func(x *exec, v any, a *arguments) any

// filters are the filters by name.
func filters() map[string]filterFunc {
	text := func(f func(s string) string) filterFunc {
		return func(x *exec, v any, a *arguments) any { return f(x.str(v)) }
	}
	table := map[string]filterFunc{
		"abs": absolute, "attr": filterAttr, "batch": batch, "capitalize": text(capitalize), "default": defaultTo,
		"dictsort": dictSort, "escape": text(escape), "first": first, "float": toFloat, "indent": indent, "int": toInt,
		"items": itemsOf, "join": join, "last": last, "length": lengthOf, "list": toList, "lower": text(lower), "map": mapped,
		"max":    func(x *exec, v any, a *arguments) any { return extreme(x, v, a, 1) },
		"min":    func(x *exec, v any, a *arguments) any { return extreme(x, v, a, -1) },
		"reject": selecting(false, false), "rejectattr": selecting(true, false), "select": selecting(false, true), "selectattr": selecting(true, true),
		"replace": filterReplace, "reverse": reverse, "round": round, "safe": func(x *exec, v any, a *arguments) any { return markup(x.str(v)) },
		"sort": sortFilter, "string": toString, "sum": sum, "title": text(filterTitle), "tojson": toJSON, "trim": trim,
		"truncate": truncate, "unique": unique, "upper": text(upper), "wordcount": func(x *exec, v any, a *arguments) any {
			return int64(len(strings.FieldsFunc(x.str(v), func(r rune) bool { return !isWordRune(r) })))
		},
	}
	table["count"], table["d"], table["e"] = table["length"], table["default"], table["escape"]
	return table
}

func absolute(x *exec, v any, a *arguments) any {
	i, f, isFloat, ok := asNumber(v)
	switch {
	case !ok:
		x.fail("|abs of a %s", typeName(v))
	case isFloat:
		return math.Abs(f)
	case i < 0:
		return x.int(0, i, "-")
	}
	return i
}

func filterAttr(x *exec, v any, a *arguments) any {
	name := a.text(x, 0, "name", "")
	switch v := v.(type) {
	case *namespace, *loop:
		return x.attr(v, name)
	}
	if m := x.method(v, name); m != nil {
		return m
	}
	return undefined{name + " of a " + typeName(v)}
}

func batch(x *exec, v any, a *arguments) any {
	n, fill := a.int(x, 0, "linecount", 0), a.get(1, "fill_with", nil)
	items := x.items(v)
	if n <= 0 || n > maxRange {
		x.fail("|batch needs a number from 1 to %d", maxRange)
	}
	var out []any
	for len(items) > 0 {
		k := min(int(n), len(items))
		row := slices.Clone(List(items[:k]))
		items = items[k:]
		for fill != nil && len(row) < int(n) {
			row = append(row, fill)
		}
		x.make(16 * len(row))
		out = append(out, row)
	}
	return &generator{out}
}

func defaultTo(x *exec, v any, a *arguments) any {
	otherwise, also := a.get(0, "default_value", ""), truth(a.get(1, "boolean", false))
	if _, ok := v.(undefined); ok || also && !truth(v) {
		return otherwise
	}
	return v
}

// folded is what strings are compared by where case does not count.
func folded(v any) any {
	if s, ok := asText(v); ok {
		return lower(s)
	}
	return v
}

// sorted sorts by the keys of items. It keeps the order of equal ones.
func (x *exec) sorted(items []any, key func(any) any, reverse bool) []any {
	x.make(32 * len(items))
	out := slices.Clone(items)
	slices.SortStableFunc(out, func(a, b any) int {
		c := x.compare(key(a), key(b))
		if reverse {
			return -c
		}
		return c
	})
	return out
}

func dictSort(x *exec, v any, a *arguments) any {
	cased, by, reversed := truth(a.get(0, "case_sensitive", false)), a.text(x, 1, "by", "key"), truth(a.get(2, "reverse", false))
	d, ok := v.(*Dict)
	if !ok || by != "key" && by != "value" {
		x.fail("|dictsort needs a dict, and by= key or value")
	}
	return List(x.sorted(d.pairs(), func(pair any) any {
		k := pair.(tuple)[0]
		if by == "value" {
			k = pair.(tuple)[1]
		}
		if !cased {
			k = folded(k)
		}
		return k
	}, reversed))
}

func first(x *exec, v any, a *arguments) any {
	if g, ok := v.(*generator); ok {
		if len(g.items) == 0 {
			return undefined{"the first of nothing"}
		}
		item := g.items[0]
		g.items = g.items[1:]
		return item
	}
	items := x.items(v)
	if len(items) == 0 {
		return undefined{"the first of nothing"}
	}
	return items[0]
}

func last(x *exec, v any, a *arguments) any {
	if g, ok := v.(*generator); ok {
		x.fail("|last of a %s: make it a |list", typeName(g))
	}
	items := x.items(v)
	if len(items) == 0 {
		return undefined{"the last of nothing"}
	}
	return items[len(items)-1]
}

func toFloat(x *exec, v any, a *arguments) any {
	otherwise := a.get(0, "default", 0.0)
	if _, f, _, ok := asNumber(v); ok {
		return f
	}
	s, ok := asText(v)
	if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); ok && err == nil && !strings.ContainsAny(s, "xXpP_") {
		return f
	}
	return otherwise
}

func toInt(x *exec, v any, a *arguments) any {
	otherwise, base := a.get(0, "default", int64(0)), a.int(x, 1, "base", 10)
	if i, f, isFloat, ok := asNumber(v); ok {
		if !isFloat {
			return i
		}
		if math.IsNaN(f) || math.Abs(f) >= 1<<63 {
			return otherwise
		}
		return int64(f)
	}
	s, ok := asText(v)
	if !ok {
		return otherwise
	}
	s = strings.TrimFunc(s, isSpace)
	if base != 10 {
		x.fail("|int with base=%d is not supported: only 10", base)
	}
	if i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", " "), 10, 64); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<63 && !strings.ContainsAny(s, "xXpP_") {
		return int64(f)
	}
	return otherwise
}

func toString(x *exec, v any, a *arguments) any {
	if m, ok := v.(markup); ok {
		return m
	}
	return x.str(v)
}

func indent(x *exec, v any, a *arguments) any {
	by, atFirst, blank := a.get(0, "width", int64(4)), truth(a.get(1, "first", false)), truth(a.get(2, "blank", false))
	s := x.str(v)
	pad, ok := asText(by)
	if !ok {
		n, _, isFloat, ok := asNumber(by)
		if !ok || isFloat {
			x.fail("|indent by a %s", typeName(by))
		}
		x.makeTimes(1, max(n, 0))
		pad = strings.Repeat(" ", int(max(n, 0)))
	}
	lines := splitLines(s + "\n")
	x.makeTimes(len(pad), int64(len(lines)))
	for i, line := range lines {
		if i > 0 && (blank || line != "") || i == 0 && atFirst {
			lines[i] = pad + line
		}
	}
	out := strings.Join(lines, "\n")
	x.make(len(out))
	return out
}

func itemsOf(x *exec, v any, a *arguments) any {
	switch v := v.(type) {
	case undefined:
		return &generator{}
	case *Dict:
		x.make(48 * len(v.keys))
		return &generator{v.pairs()}
	}
	x.fail("|items of a %s: only a dict has them", typeName(v))
	return nil
}

func join(x *exec, v any, a *arguments) any {
	sep, attribute := x.str(a.get(0, "d", "")), a.get(1, "attribute", nil)
	var b strings.Builder
	for i, item := range x.items(v) {
		if i > 0 {
			b.WriteString(sep)
		}
		if attribute != nil {
			item = x.path(item, attribute)
		}
		b.WriteString(x.str(item))
		if b.Len() > maxString {
			break
		}
	}
	x.make(b.Len())
	return b.String()
}

// path follows an attribute such as "function.name".
func (x *exec) path(v any, attribute any) any {
	name, ok := asText(attribute)
	if !ok {
		return x.item(v, attribute)
	}
	for part := range strings.SplitSeq(name, ".") {
		if i, ok := decimal(part); ok {
			v = x.item(v, int64(i))
		} else {
			v = x.item(v, part)
		}
	}
	return v
}

func lengthOf(x *exec, v any, a *arguments) any {
	n := length(v)
	if n < 0 {
		x.fail("a %s has no length", typeName(v))
	}
	return int64(n)
}

func toList(x *exec, v any, a *arguments) any {
	items := x.items(v)
	x.make(16 * len(items))
	return List(slices.Clone(items))
}

func mapped(x *exec, v any, a *arguments) any {
	items := x.items(v)
	x.make(16 * len(items))
	out := make([]any, len(items))
	if len(a.list) == 0 {
		attribute, otherwise := a.get(-1, "attribute", nil), a.get(-1, "default", undefined{})
		if attribute == nil {
			x.fail("|map needs a filter or attribute=")
		}
		for i, item := range items {
			out[i] = x.path(item, attribute)
			if _, ok := out[i].(undefined); ok && otherwise != any(undefined{}) {
				out[i] = otherwise
			}
		}
		return &generator{out}
	}
	name := a.text(x, 0, "filter", "")
	fn, ok := x.known.filters[name]
	if !ok {
		x.fail("the filter |%s is not known", name)
	}
	for i, item := range items {
		inner := &arguments{of: "the filter |" + name, list: a.list[1:], named: slices.Clone(a.named)}
		x.step()
		out[i] = fn(x, item, inner)
		inner.none(x)
	}
	a.used, a.named = len(a.list), nil
	return &generator{out}
}

// selecting makes select, reject, selectattr and rejectattr.
func selecting(byAttribute, keep bool) filterFunc {
	return func(x *exec, v any, a *arguments) any {
		rest := a.list
		a.used = len(a.list)
		var attribute any
		if byAttribute {
			if len(rest) == 0 {
				x.fail("%s needs the name of an attribute", a.of)
			}
			attribute, rest = rest[0], rest[1:]
		}
		holds := func(v any) bool { return truth(v) }
		if len(rest) > 0 {
			name, _ := asText(rest[0])
			fn, ok := x.known.tests[name]
			if !ok {
				x.fail("the test \"is %s\" is not known", name)
			}
			if len(rest)-1 != fn.args {
				x.fail("the test \"is %s\" takes %d values, not %d", name, fn.args, len(rest)-1)
			}
			holds = func(v any) bool { return fn.run(x, v, rest[1:]) }
		}
		var out []any
		for _, item := range x.items(v) {
			x.step()
			value := item
			if byAttribute {
				value = x.path(item, attribute)
			}
			if holds(value) == keep {
				out = append(out, item)
			}
		}
		x.make(16 * len(out))
		return &generator{out}
	}
}

func extreme(x *exec, v any, a *arguments, sign int) any {
	cased, attribute := truth(a.get(0, "case_sensitive", false)), a.get(1, "attribute", nil)
	key := x.sortKey(cased, attribute)
	items := x.items(v)
	if len(items) == 0 {
		return undefined{"the extreme of nothing"}
	}
	best := items[0]
	for _, item := range items[1:] {
		if sign*x.compare(key(item), key(best)) > 0 {
			best = item
		}
	}
	return best
}

// sortKey is what items are compared by.
func (x *exec) sortKey(cased bool, attribute any) func(any) any {
	return func(v any) any {
		if attribute != nil {
			v = x.path(v, attribute)
		}
		if !cased {
			v = folded(v)
		}
		return v
	}
}

func filterReplace(x *exec, v any, a *arguments) any {
	from, to, count := a.get(0, "old", nil), a.get(1, "new", nil), a.get(2, "count", nil)
	n := int64(-1)
	if count != nil {
		n, _, _, _ = asNumber(count)
	}
	return x.replace(x.str(v), x.str(from), x.str(to), n)
}

func reverse(x *exec, v any, a *arguments) any {
	if s, ok := asText(v); ok {
		x.make(4 * len(s))
		r := []rune(s)
		slices.Reverse(r)
		return string(r)
	}
	items := slices.Clone(x.items(v))
	x.make(16 * len(items))
	slices.Reverse(items)
	return &generator{items}
}

func round(x *exec, v any, a *arguments) any {
	precision, way := a.int(x, 0, "precision", 0), a.text(x, 1, "method", "common")
	_, f, _, ok := asNumber(v)
	if !ok || precision < -300 || precision > 300 {
		x.fail("|round of a %s to %d digits", typeName(v), precision)
	}
	scale := math.Pow(10, float64(precision))
	switch way {
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	case "common":
		if precision < 0 {
			return math.RoundToEven(f*scale) / scale
		}
		r, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
		if err == nil {
			return r
		}
	}
	x.fail("|round does not know the method %q", way)
	return nil
}

func sortFilter(x *exec, v any, a *arguments) any {
	reversed, cased, attribute := truth(a.get(0, "reverse", false)), truth(a.get(1, "case_sensitive", false)), a.get(2, "attribute", nil)
	if s, ok := asText(attribute); ok && strings.Contains(s, ",") {
		x.fail("|sort by several attributes is not supported")
	}
	return List(x.sorted(x.items(v), x.sortKey(cased, attribute), reversed))
}

func sum(x *exec, v any, a *arguments) any {
	attribute, total := a.get(0, "attribute", nil), a.get(1, "start", int64(0))
	for _, item := range x.items(v) {
		if attribute != nil {
			item = x.path(item, attribute)
		}
		i, f, isFloat, ok := asNumber(total)
		j, g, isFloat2, ok2 := asNumber(item)
		switch {
		case !ok || !ok2:
			x.fail("|sum of a %s", typeName(item))
		case isFloat || isFloat2:
			total = f + g
		default:
			total = x.int(i, j, "+")
		}
	}
	return total
}

// filterTitle is Jinja's: only after spaces, hyphens and brackets a word begins.
func filterTitle(s string) string {
	var b strings.Builder
	for begin := 0; begin < len(s); {
		end := begin + strings.IndexFunc(s[begin:], func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) })
		if end < begin {
			b.WriteString(capitalize(s[begin:]))
			break
		}
		if end > begin {
			b.WriteString(capitalize(s[begin:end]))
		}
		n := firstRune(s[end:])
		b.WriteString(s[end : end+n])
		begin = end + n
	}
	return b.String()
}

func toJSON(x *exec, v any, a *arguments) any {
	s := &jsonStyle{item: ", ", key: ": ", ascii: truth(a.get(0, "ensure_ascii", false))}
	switch width := a.get(1, "indent", nil).(type) {
	case nil:
	case string:
		s.lines, s.indent = true, width
	default:
		n, _, isFloat, ok := asNumber(width)
		if !ok || isFloat || n > 1000 {
			x.fail("|tojson cannot be indented by that %s", typeName(width))
		}
		s.lines, s.indent = true, strings.Repeat(" ", int(max(n, 0)))
	}
	if s.lines {
		s.item = ","
	}
	if separators := a.get(2, "separators", nil); separators != nil {
		pair, _ := sequence(separators)
		if len(pair) != 2 {
			x.fail("|tojson: separators must be two strings")
		}
		s.item, s.key = x.str(pair[0]), x.str(pair[1])
	}
	s.sorted = truth(a.get(3, "sort_keys", false))
	var b strings.Builder
	x.json(&b, v, s, 0)
	x.make(b.Len())
	return b.String()
}

func trim(x *exec, v any, a *arguments) any {
	s := x.str(v)
	chars := a.get(0, "chars", nil)
	if chars == nil {
		return strings.TrimFunc(s, isSpace)
	}
	return strings.Trim(s, x.str(chars))
}

func truncate(x *exec, v any, a *arguments) any {
	limit, kill, end, leeway := a.int(x, 0, "length", 255), truth(a.get(1, "killwords", false)), a.text(x, 2, "end", "..."), a.get(3, "leeway", nil)
	more := int64(5)
	if leeway != nil {
		more, _, _, _ = asNumber(leeway)
	}
	r := []rune(x.str(v))
	x.make(4 * len(r))
	if limit < int64(runes(end)) || more < 0 {
		x.fail("|truncate to %d characters, of which the end has more", limit)
	}
	if int64(len(r)) <= limit+more {
		return string(r)
	}
	cut := string(r[:limit-int64(runes(end))])
	if !kill {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return cut + end
}

func unique(x *exec, v any, a *arguments) any {
	key := x.sortKey(truth(a.get(0, "case_sensitive", false)), a.get(1, "attribute", nil))
	seen := make(map[string]bool)
	var out []any
	for _, item := range x.items(v) {
		h, ok := hash(key(item))
		if !ok {
			x.fail("|unique of a %s", typeName(item))
		}
		if !seen[h] {
			seen[h] = true
			out = append(out, item)
		}
	}
	x.make(64 * len(out))
	return &generator{out}
}
