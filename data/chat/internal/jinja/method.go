// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"slices"
	"strings"
	"unicode"
)

// What a call of a method may be named: others are refused before a template
// is used. Those that change a value are refused where they are called, as the
// sandbox of Jinja does.
var (
	stringMethods = map[string]func(x *exec, s string, a *arguments) any{
		"strip":        func(x *exec, s string, a *arguments) any { return strip(x, s, a, true, true) },
		"lstrip":       func(x *exec, s string, a *arguments) any { return strip(x, s, a, true, false) },
		"rstrip":       func(x *exec, s string, a *arguments) any { return strip(x, s, a, false, true) },
		"split":        split,
		"rsplit":       rsplit,
		"splitlines":   func(x *exec, s string, a *arguments) any { return texts(x, splitLines(s)) },
		"startswith":   func(x *exec, s string, a *arguments) any { return affix(x, s, a, strings.HasPrefix) },
		"endswith":     func(x *exec, s string, a *arguments) any { return affix(x, s, a, strings.HasSuffix) },
		"replace":      replaceText,
		"join":         joinMethod,
		"upper":        func(x *exec, s string, a *arguments) any { return upper(s) },
		"lower":        func(x *exec, s string, a *arguments) any { return lower(s) },
		"casefold":     func(x *exec, s string, a *arguments) any { return lower(s) },
		"title":        func(x *exec, s string, a *arguments) any { return title(s) },
		"capitalize":   func(x *exec, s string, a *arguments) any { return capitalize(s) },
		"find":         func(x *exec, s string, a *arguments) any { return find(x, s, a, strings.Index) },
		"rfind":        func(x *exec, s string, a *arguments) any { return find(x, s, a, strings.LastIndex) },
		"count":        countText,
		"removeprefix": func(x *exec, s string, a *arguments) any { return strings.TrimPrefix(s, a.text(x, 0, "prefix", "")) },
		"removesuffix": func(x *exec, s string, a *arguments) any { return strings.TrimSuffix(s, a.text(x, 0, "suffix", "")) },
		"isdigit":      func(x *exec, s string, a *arguments) any { return all(s, unicode.IsDigit) },
		"isalpha":      func(x *exec, s string, a *arguments) any { return all(s, unicode.IsLetter) },
		"isspace":      func(x *exec, s string, a *arguments) any { return all(s, isSpace) },
		"isalnum": func(x *exec, s string, a *arguments) any {
			return all(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
		},
		"isupper":    func(x *exec, s string, a *arguments) any { return s != lower(s) && s == upper(s) },
		"islower":    func(x *exec, s string, a *arguments) any { return s != upper(s) && s == lower(s) },
		"partition":  func(x *exec, s string, a *arguments) any { return partition(x, s, a, false) },
		"rpartition": func(x *exec, s string, a *arguments) any { return partition(x, s, a, true) },
		"format":     formatText,
	}
	dictMethods = map[string]func(x *exec, d *Dict, a *arguments) any{
		"get": func(x *exec, d *Dict, a *arguments) any {
			v, ok := d.get(a.get(0, "key", nil))
			if otherwise := a.get(1, "default", nil); !ok {
				return otherwise
			}
			return v
		},
		"items":  func(x *exec, d *Dict, a *arguments) any { return view{"dict_items", d.pairs()} },
		"keys":   func(x *exec, d *Dict, a *arguments) any { return view{"dict_keys", d.keys} },
		"values": func(x *exec, d *Dict, a *arguments) any { return view{"dict_values", d.list()} },
		"copy":   func(x *exec, d *Dict, a *arguments) any { return d },
	}
	listMethods = map[string]func(x *exec, l []any, a *arguments) any{
		"index": func(x *exec, l []any, a *arguments) any {
			v := a.get(0, "value", nil)
			for i, item := range l {
				if x.equal(item, v) {
					return int64(i)
				}
			}
			x.fail(".index(): the value is not in the list")
			return nil
		},
		"count": func(x *exec, l []any, a *arguments) any {
			n, v := int64(0), a.get(0, "value", nil)
			for _, item := range l {
				if x.equal(item, v) {
					n++
				}
			}
			return n
		},
		"copy": func(x *exec, l []any, a *arguments) any { return List(l) },
	}
	changers = map[string][]string{
		"list": {"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort"},
		"dict": {"update", "pop", "popitem", "setdefault", "clear"},
	}
)

// methodNames are all names of methods.
var methodNames = func() map[string]bool {
	all := map[string]bool{"cycle": true, "changed": true, "next": true, "reset": true, "fromkeys": true}
	for name := range stringMethods {
		all[name] = true
	}
	for name := range dictMethods {
		all[name] = true
	}
	for name := range listMethods {
		all[name] = true
	}
	for _, names := range changers {
		for _, name := range names {
			all[name] = true
		}
	}
	return all
}()

// method returns the method of a value, nil if it has none of that name.
func (x *exec) method(v any, name string) any {
	bind := func(f func(x *exec, a *arguments) any) any {
		return &method{"." + name, func(x *exec, a *arguments) any {
			out := f(x, a)
			a.none(x)
			return out
		}}
	}
	if kind := typeName(v); slices.Contains(changers[kind], name) {
		return bind(func(x *exec, a *arguments) any {
			x.fail(".%s() would change a %s, which a template cannot", name, kind)
			return nil
		})
	}
	switch v := v.(type) {
	case string:
		if f, ok := stringMethods[name]; ok {
			return bind(func(x *exec, a *arguments) any { return f(x, v, a) })
		}
	case markup:
		if f, ok := stringMethods[name]; ok {
			return bind(func(x *exec, a *arguments) any { return f(x, string(v), a) })
		}
	case *Dict:
		if f, ok := dictMethods[name]; ok {
			return bind(func(x *exec, a *arguments) any { return f(x, v, a) })
		}
	case List:
		if f, ok := listMethods[name]; ok {
			return bind(func(x *exec, a *arguments) any { return f(x, v, a) })
		}
	case tuple:
		if f, ok := listMethods[name]; ok && name != "copy" {
			return bind(func(x *exec, a *arguments) any { return f(x, v, a) })
		}
	}
	return nil
}

func (d *Dict) list() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = d.value(k)
	}
	return out
}

func texts(x *exec, list []string) any {
	out := make(List, len(list))
	n := 16 * len(list)
	for i, s := range list {
		out[i] = s
		n += len(s)
	}
	x.make(n)
	return out
}

func strip(x *exec, s string, a *arguments, left, right bool) any {
	is := isSpace
	if chars := a.get(0, "chars", nil); chars != nil {
		set, ok := asText(chars)
		if !ok {
			x.fail("%s needs a string, not %s", a.of, typeName(chars))
		}
		is = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, is)
	}
	if right {
		s = strings.TrimRightFunc(s, is)
	}
	return s
}

// separator returns what a text is split at, "" for spaces, and how often.
func separator(x *exec, a *arguments) (string, int) {
	sep, limit := a.get(0, "sep", nil), a.int(x, 1, "maxsplit", -1)
	if limit < 0 || limit > maxString {
		limit = maxString
	}
	if sep == nil {
		return "", int(limit)
	}
	s, ok := asText(sep)
	if !ok || s == "" {
		x.fail("%s needs a string that is not empty", a.of)
	}
	return s, int(limit)
}

func split(x *exec, s string, a *arguments) any {
	sep, limit := separator(x, a)
	if sep != "" {
		return texts(x, strings.SplitN(s, sep, limit+1))
	}
	var out []string
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 || len(out) == limit {
			if i >= 0 {
				s = strings.TrimRightFunc(s, isSpace)
			}
			out = append(out, s)
			break
		}
		out = append(out, s[:i])
		s = s[i:]
	}
	return texts(x, out)
}

func rsplit(x *exec, s string, a *arguments) any {
	sep, limit := separator(x, a)
	var out []string
	if sep == "" {
		s = strings.TrimRightFunc(s, isSpace)
	}
	for len(out) < limit {
		i, n := strings.LastIndex(s, sep), len(sep)
		if sep == "" {
			if i = strings.LastIndexFunc(s, isSpace); i >= 0 {
				n = len(s[i:]) - len(strings.TrimLeftFunc(s[i:], isSpace))
			}
		}
		if i < 0 {
			break
		}
		if sep == "" { // the first character of the space at i
			out = append(out, s[i+firstRune(s[i:]):])
			s = strings.TrimRightFunc(s[:i], isSpace)
			continue
		}
		out = append(out, s[i+n:])
		s = s[:i]
	}
	if sep != "" || s != "" {
		if sep == "" {
			s = strings.TrimLeftFunc(s, isSpace)
		}
		out = append(out, s)
	}
	slices.Reverse(out)
	return texts(x, out)
}

func firstRune(s string) int {
	for i := range s {
		if i > 0 {
			return i
		}
	}
	return len(s)
}

// splitLines is Python's str.splitlines.
func splitLines(s string) []string {
	var out []string
	begin := 0
	for i, r := range s {
		if i < begin {
			continue
		}
		n := 0
		switch r {
		case '\r':
			if n = 1; i+1 < len(s) && s[i+1] == '\n' {
				n = 2
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e:
			n = 1
		case 0x85:
			n = 2
		case 0x2028, 0x2029:
			n = 3
		}
		if n > 0 {
			out = append(out, s[begin:i])
			begin = i + n
		}
	}
	if begin < len(s) {
		out = append(out, s[begin:])
	}
	return out
}

func affix(x *exec, s string, a *arguments, has func(s, part string) bool) any {
	v := a.get(0, "prefix", nil)
	if list, ok := v.(tuple); ok {
		return slices.ContainsFunc(list, func(v any) bool {
			part, ok := asText(v)
			return ok && has(s, part)
		})
	}
	part, ok := asText(v)
	if !ok {
		x.fail("%s needs a string, not %s", a.of, typeName(v))
	}
	return has(s, part)
}

func replaceText(x *exec, s string, a *arguments) any {
	from, to, n := a.text(x, 0, "old", ""), a.text(x, 1, "new", ""), a.int(x, 2, "count", -1)
	return x.replace(s, from, to, n)
}

func (x *exec) replace(s, from, to string, n int64) string {
	hits := int64(strings.Count(s, from))
	if n >= 0 {
		hits = min(hits, n)
	}
	x.makeTimes(len(to), hits)
	x.make(len(s))
	if n < 0 || n > maxString {
		n = -1
	}
	return strings.Replace(s, from, to, int(n))
}

func joinMethod(x *exec, s string, a *arguments) any {
	var b strings.Builder
	for i, v := range x.items(a.get(0, "iterable", nil)) {
		part, ok := asText(v)
		if !ok {
			x.fail(".join() of a %s: only strings can be joined", typeName(v))
		}
		if i > 0 {
			b.WriteString(s)
		}
		b.WriteString(part)
		if b.Len() > maxString {
			break
		}
	}
	x.make(b.Len())
	return b.String()
}

func find(x *exec, s string, a *arguments, index func(s, part string) int) any {
	i := index(s, a.text(x, 0, "sub", ""))
	if i < 0 {
		return int64(-1)
	}
	return int64(runes(s[:i]))
}

func countText(x *exec, s string, a *arguments) any {
	return int64(strings.Count(s, a.text(x, 0, "sub", "")))
}

func all(s string, is func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
}

func partition(x *exec, s string, a *arguments, last bool) any {
	sep := a.text(x, 0, "sep", "")
	if sep == "" {
		x.fail("%s needs a string that is not empty", a.of)
	}
	i := strings.Index(s, sep)
	if last {
		i = strings.LastIndex(s, sep)
	}
	switch {
	case i >= 0:
		return tuple{s[:i], sep, s[i+len(sep):]}
	case last:
		return tuple{"", "", s}
	}
	return tuple{s, "", ""}
}

// formatText is str.format with {}, {0} and {name}, without format settings.
func formatText(x *exec, s string, a *arguments) any {
	var b strings.Builder
	next := 0
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 || i+1 == len(s) {
			if i >= 0 {
				x.fail(".format(): a single %q", s[i])
			}
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		if s[i+1] == s[i] {
			b.WriteByte(s[i])
			s = s[i+2:]
			continue
		}
		end := strings.IndexByte(s, '}')
		if s[i] == '}' || end < i {
			x.fail(".format(): a single %q", s[i])
		}
		field := s[i+1 : end]
		s = s[end+1:]
		b.WriteString(x.str(formatField(x, field, &next, a)))
		x.make(b.Len())
	}
	a.used, a.named = len(a.list), nil
	return b.String()
}

func formatField(x *exec, field string, next *int, a *arguments) any {
	if i, ok := decimal(field); ok || field == "" {
		if field == "" {
			i = *next
			*next++
		}
		if i >= len(a.list) {
			x.fail(".format(): there is no value %d", i)
		}
		return a.list[i]
	}
	for _, n := range a.named {
		if n.name == field {
			return n.value
		}
	}
	x.fail(".format(): the field {%s} is not supported or has no value", field)
	return nil
}

func decimal(s string) (n int, ok bool) {
	if s == "" || len(s) > 6 {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}
