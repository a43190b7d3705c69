// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"strings"
	"time"
)

// globals are the functions that every template has.
var globals = func() map[string]any {
	all := map[string]any{}
	for name, f := range map[string]func(x *exec, a *arguments) any{
		"range": rangeOf, "namespace": newNamespace, "dict": newDict, "raise_exception": raise, "strftime_now": strftimeNow,
		"cycler": newCycler, "joiner": newJoiner,
	} {
		all[name] = &method{name, f}
	}
	return all
}()

func rangeOf(x *exec, a *arguments) any {
	var n [3]int64
	if len(a.list) == 0 || len(a.list) > 3 {
		x.fail("range() needs one to three integers")
	}
	for i := range a.list {
		n[i] = a.int(x, i, "the value", 0)
	}
	a.none(x)
	s := span{0, n[0], 1}
	if len(a.list) > 1 {
		s.start, s.stop = n[0], n[1]
	}
	if len(a.list) == 3 {
		s.step = n[2]
	}
	const far = 1 << 40
	if s.step == 0 || max(s.start, s.stop, s.step) > far || min(s.start, s.stop, s.step) < -far || s.len() > maxRange {
		x.fail("a range of more than %d numbers, or with the step 0", maxRange)
	}
	return s
}

// dictOf makes a dict of a dict, or of pairs, and of named values.
func dictOf(x *exec, a *arguments) *Dict {
	d := new(Dict)
	if v := a.get(0, "", nil); v != nil {
		if from, ok := v.(*Dict); ok {
			for _, k := range from.keys {
				d.set(k, from.value(k))
			}
		} else {
			for _, item := range x.items(v) {
				pair := x.items(item)
				if len(pair) != 2 || !d.set(pair[0], pair[1]) {
					x.fail("dict() needs pairs")
				}
			}
		}
	}
	for _, n := range a.named {
		d.Set(n.name, n.value)
	}
	a.named = nil
	a.none(x)
	x.make(64 * len(d.keys))
	return d
}

func newDict(x *exec, a *arguments) any { return dictOf(x, a) }

func newNamespace(x *exec, a *arguments) any {
	d := dictOf(x, a)
	n := &namespace{make(map[string]any)}
	for _, k := range d.Keys() {
		if strings.HasPrefix(k, "_") {
			x.fail("a namespace cannot have the attribute %s", k)
		}
		n.vars[k] = d.value(k)
	}
	return n
}

// raise ends the rendering with the template's own words.
func raise(x *exec, a *arguments) any {
	panic(&Error{Line: x.line, Msg: x.str(a.get(0, "message", "")), Raised: true})
}

func newCycler(x *exec, a *arguments) any {
	if len(a.list) == 0 {
		x.fail("cycler() needs values")
	}
	items, at := a.list, 0
	n := &namespace{make(map[string]any)}
	n.vars["next"] = &method{"next", func(x *exec, _ *arguments) any {
		v := items[at]
		at = (at + 1) % len(items)
		n.vars["current"] = items[at]
		return v
	}}
	n.vars["reset"] = &method{"reset", func(x *exec, _ *arguments) any {
		at, n.vars["current"] = 0, items[0]
		return nil
	}}
	n.vars["current"] = items[0]
	return n
}

func newJoiner(x *exec, a *arguments) any {
	sep, used := a.get(0, "sep", ", "), false
	return &method{"joiner", func(x *exec, _ *arguments) any {
		if !used {
			used = true
			return ""
		}
		return sep
	}}
}

// strftimeNow is the time at hand in a format of C.
func strftimeNow(x *exec, a *arguments) any {
	format := a.text(x, 0, "format", "")
	a.none(x)
	now := x.now()
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		noPad := i < len(format) && format[i] == '-'
		if noPad {
			i++
		}
		if i == len(format) {
			x.fail("strftime_now(): %q ends within a directive", format)
		}
		text, ok := strftime(now, format[i])
		if !ok {
			x.fail("strftime_now() does not know %%%c", format[i])
		}
		if noPad && len(text) > 1 {
			text = strings.TrimLeft(text[:len(text)-1], "0 ") + text[len(text)-1:]
		}
		b.WriteString(text)
	}
	return b.String()
}

// strftime writes what a directive of C's strftime stands for.
func strftime(t time.Time, c byte) (string, bool) {
	layouts := map[byte]string{
		'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'y': "06", 'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
		'p': "PM", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'e': "_2", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'j': "002",
	}
	if layout, ok := layouts[c]; ok {
		return t.Format(layout), true
	}
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	}
	return "", false // %Z and %z are empty in transformers, whose time has no zone
}
