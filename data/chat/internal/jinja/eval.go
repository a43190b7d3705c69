// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Limits of an execution. A conversation of a megabyte needs far less.
const (
	maxSteps  = 4 << 20
	maxString = 64 << 20 // bytes of one text
	maxMade   = 1 << 30  // bytes of all that is made
	maxDepth  = 100      // of macros, of loops and of values in each other
	maxRange  = 100000   // as the sandbox of Jinja has it
)

// exec is one execution of a template.
type exec struct {
	out    *strings.Builder
	root   *strings.Builder
	scope  *scope
	line   int
	steps  int
	made   int
	depth  int
	now    func() time.Time
	known  *tables
	spans  []Span
	wanted bool // spans are
	lost   bool // there is a span of which the place is not known
}

// scope has the variables of a template, a loop or a macro.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (x *exec) fail(format string, args ...any) { fail(x.line, format, args...) }

func (x *exec) step() {
	x.steps++
	if x.steps > maxSteps {
		x.fail("the template takes more than %d steps", maxSteps)
	}
}

// make counts what is made.
func (x *exec) make(n int) {
	if n > maxString {
		x.fail("a value of more than %d bytes", maxString)
	}
	x.made += n
	if x.made > maxMade {
		x.fail("the template makes more than %d bytes", maxMade)
	}
}

// enter goes one deeper; its result comes back.
func (x *exec) enter() func() {
	x.depth++
	if x.depth > 2*maxDepth {
		x.fail("more than %d values or calls in each other", 2*maxDepth)
	}
	return func() { x.depth-- }
}

func (x *exec) write(s string) {
	if x.out.Len()+len(s) > maxString {
		x.fail("the template writes more than %d bytes", maxString)
	}
	x.make(len(s))
	x.out.WriteString(s)
}

// lookup returns the value of a name.
func (x *exec) lookup(name string) any {
	for s := x.scope; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	if g, ok := globals[name]; ok {
		return g
	}
	return undefined{name}
}

// inScope runs f with variables of its own.
func (x *exec) inScope(vars map[string]any, f func()) {
	outer := x.scope
	x.scope = &scope{vars, outer}
	f()
	x.scope = outer
}

// capture returns what f writes.
func (x *exec) capture(f func()) string {
	outer := x.out
	x.out = new(strings.Builder)
	f()
	s := x.out.String()
	x.out = outer
	return s
}

// expr is an expression.
type expr interface{ eval(x *exec) any }

type (
	constExpr struct{ value any }
	nameExpr  struct {
		name string
		line int
	}
	attrExpr struct {
		value expr
		name  string
		line  int
	}
	itemExpr struct {
		value, key expr
		line       int
	}
	sliceExpr struct {
		start, stop, step expr
		line              int
	}
	listExpr struct {
		items []expr
		tuple bool
		line  int
	}
	dictExpr struct {
		keys, values []expr
		line         int
	}
	condExpr struct {
		value, cond, orElse expr
		line                int
	}
	logicExpr struct {
		or          bool
		left, right expr
	}
	notExpr     struct{ value expr }
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
		line  int
	}
	binaryExpr struct {
		op          string
		left, right expr
		line        int
	}
	concatExpr struct {
		parts []expr
		line  int
	}
	signExpr struct {
		minus bool
		value expr
		line  int
	}
	keyword struct {
		name  string
		value expr
	}
	callExpr struct {
		fn       expr
		args     []expr
		keywords []keyword
		line     int
	}
	filterExpr struct {
		value    expr
		name     string
		fn       filterFunc
		args     []expr
		keywords []keyword
		line     int
	}
	testExpr struct {
		value expr
		name  string
		fn    testFunc
		args  []expr
		line  int
	}
	// bodyExpr is what a block contains, where a filter is put on it.
	bodyExpr struct{}
)

func (e *constExpr) eval(x *exec) any { x.step(); return e.value }
func (e *bodyExpr) eval(x *exec) any  { return x.lookup(" body") }

func (e *nameExpr) eval(x *exec) any {
	x.step()
	x.line = e.line
	return x.lookup(e.name)
}

func (e *attrExpr) eval(x *exec) any {
	v := e.value.eval(x)
	x.line = e.line
	return x.attr(v, e.name)
}

func (e *itemExpr) eval(x *exec) any {
	v := e.value.eval(x)
	if s, ok := e.key.(*sliceExpr); ok {
		return s.slice(x, v)
	}
	key := e.key.eval(x)
	x.line = e.line
	return x.item(v, key)
}

func (e *sliceExpr) eval(x *exec) any {
	x.line = e.line
	x.fail("a slice of several dims")
	return nil
}

// bound evaluates a bound of a slice.
func (e *sliceExpr) bound(x *exec, b expr, otherwise int) int {
	if b == nil {
		return otherwise
	}
	v := b.eval(x)
	x.line = e.line
	if v == nil {
		return otherwise
	}
	i, _, isFloat, ok := asNumber(v)
	if isFloat || !ok {
		x.fail("a bound of a slice is %s", typeName(v))
	}
	return int(max(min(i, math.MaxInt32), math.MinInt32))
}

func (e *sliceExpr) slice(x *exec, v any) any {
	x.line = e.line
	if u, ok := v.(undefined); ok {
		x.fail("%s is undefined", u.what)
	}
	text, isText := asText(v)
	items, isList := sequence(v)
	var runes []rune
	n := len(items)
	switch {
	case isText:
		x.make(4 * len(text))
		runes = []rune(text)
		n = len(runes)
	case !isList:
		return undefined{"a slice of a " + typeName(v)}
	}
	step := e.bound(x, e.step, 1)
	if step == 0 {
		x.fail("the step of a slice is 0")
	}
	fit := func(i, low, high int) int {
		if i < 0 {
			i += n
		}
		return max(min(i, high), low)
	}
	var at []int
	if step > 0 {
		for i, stop := fit(e.bound(x, e.start, 0), 0, n), fit(e.bound(x, e.stop, n), 0, n); i < stop; i += step {
			at = append(at, i)
		}
	} else {
		start, stop := n-1, -1
		if b := e.bound(x, e.start, math.MaxInt32); b != math.MaxInt32 {
			start = fit(b, -1, n-1)
		}
		if b := e.bound(x, e.stop, math.MaxInt32); b != math.MaxInt32 {
			stop = fit(b, -1, n-1)
		}
		for i := start; i > stop; i += step {
			at = append(at, i)
		}
	}
	x.make(24 * len(at))
	if isText {
		out := make([]rune, len(at))
		for i, j := range at {
			out[i] = runes[j]
		}
		return string(out)
	}
	out := make([]any, len(at))
	for i, j := range at {
		out[i] = items[j]
	}
	if _, ok := v.(tuple); ok {
		return tuple(out)
	}
	return List(out)
}

func (x *exec) evalAll(list []expr) []any {
	x.make(16 * len(list))
	out := make([]any, len(list))
	for i, e := range list {
		out[i] = e.eval(x)
	}
	return out
}

func (e *listExpr) eval(x *exec) any {
	items := x.evalAll(e.items)
	if e.tuple {
		return tuple(items)
	}
	return List(items)
}

func (e *dictExpr) eval(x *exec) any {
	d := new(Dict)
	x.make(64 * len(e.keys))
	for i, k := range e.keys {
		key, v := k.eval(x), e.values[i].eval(x)
		if !d.set(key, v) {
			x.line = e.line
			x.fail("a %s cannot be the key of a dict", typeName(key))
		}
	}
	return d
}

func (e *condExpr) eval(x *exec) any {
	if truth(e.cond.eval(x)) {
		return e.value.eval(x)
	}
	if e.orElse == nil {
		return undefined{"the value of an if without an else"}
	}
	return e.orElse.eval(x)
}

func (e *logicExpr) eval(x *exec) any {
	v := e.left.eval(x)
	if truth(v) == e.or {
		return v
	}
	return e.right.eval(x)
}

func (e *notExpr) eval(x *exec) any { return !truth(e.value.eval(x)) }

func (e *compareExpr) eval(x *exec) any {
	left := e.first.eval(x)
	for i, op := range e.ops {
		right := e.rest[i].eval(x)
		x.line = e.line
		if !x.holds(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

// holds computes a comparison.
func (x *exec) holds(op string, left, right any) bool {
	switch op {
	case "==":
		return x.equal(left, right)
	case "!=":
		return !x.equal(left, right)
	case "in":
		return x.contains(right, left)
	case "not in":
		return !x.contains(right, left)
	}
	for _, v := range []any{left, right} {
		if u, ok := v.(undefined); ok {
			x.fail("%s is undefined", u.what)
		}
	}
	c := x.compare(left, right)
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func (e *concatExpr) eval(x *exec) any {
	var b strings.Builder
	for _, p := range e.parts {
		b.WriteString(x.str(p.eval(x)))
		if b.Len() > maxString {
			x.make(b.Len())
		}
	}
	x.make(b.Len())
	return b.String()
}

func (e *signExpr) eval(x *exec) any {
	v := e.value.eval(x)
	x.line = e.line
	i, f, isFloat, ok := asNumber(v)
	switch {
	case !ok:
		x.fail("a sign before a %s", typeName(v))
	case isFloat && e.minus:
		return -f
	case isFloat:
		return f
	case e.minus:
		return x.int(0, i, "-")
	}
	return i
}

func (e *callExpr) eval(x *exec) any {
	fn := e.fn.eval(x)
	a := x.arguments(e.args, e.keywords)
	x.line = e.line
	return x.call(fn, a)
}

func (x *exec) arguments(args []expr, keywords []keyword) *arguments {
	a := &arguments{list: x.evalAll(args)}
	for _, k := range keywords {
		a.named = append(a.named, named{k.name, k.value.eval(x)})
	}
	return a
}

func (x *exec) call(fn any, a *arguments) any {
	x.step()
	switch fn := fn.(type) {
	case *method:
		a.of = fn.name + "()"
		return fn.call(x, a)
	case *function:
		return x.callMacro(fn, a)
	case *loop:
		return fn.recurse(x, a)
	case undefined:
		x.fail("%s is undefined", fn.what)
	}
	x.fail("a %s cannot be called", typeName(fn))
	return nil
}

// arguments are what a function, a filter or a test is given.
type arguments struct {
	of    string // for errors
	list  []any
	named []named
	used  int
}

type named struct {
	name  string
	value any
}

// get returns the argument of a place or of a name.
func (a *arguments) get(i int, name string, otherwise any) any {
	if i >= 0 && i < len(a.list) {
		a.used = max(a.used, i+1)
		return a.list[i]
	}
	for j, n := range a.named {
		if n.name == name {
			a.named = append(a.named[:j:j], a.named[j+1:]...)
			return n.value
		}
	}
	return otherwise
}

// none refuses what was not asked for.
func (a *arguments) none(x *exec) {
	if a.used < len(a.list) {
		x.fail("%s is given %d values, at most %d are known", a.of, len(a.list), a.used)
	}
	if len(a.named) > 0 {
		x.fail("%s does not know %s=", a.of, a.named[0].name)
	}
}

func (a *arguments) text(x *exec, i int, name, otherwise string) string {
	v := a.get(i, name, otherwise)
	s, ok := asText(v)
	if !ok {
		x.fail("%s: %s must be a string, not %s", a.of, name, typeName(v))
	}
	return s
}

func (a *arguments) int(x *exec, i int, name string, otherwise int64) int64 {
	v := a.get(i, name, otherwise)
	n, _, isFloat, ok := asNumber(v)
	if !ok || isFloat {
		x.fail("%s: %s must be an integer, not %s", a.of, name, typeName(v))
	}
	return n
}

func (e *filterExpr) eval(x *exec) any {
	v := e.value.eval(x)
	a := x.arguments(e.args, e.keywords)
	a.of = "the filter |" + e.name
	x.line = e.line
	x.step()
	out := e.fn(x, v, a)
	a.none(x)
	return out
}

// check finds mistakes of a filter before anything is rendered: filters and
// tests that it names.
func (e *filterExpr) check(k *tables) {
	if len(e.args) == 0 {
		return
	}
	place := map[string]int{"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
	i, ok := place[e.name]
	if !ok || i >= len(e.args) {
		return
	}
	c, ok := e.args[i].(*constExpr)
	if !ok {
		return
	}
	name, _ := c.value.(string)
	if e.name == "map" {
		if _, ok := k.filters[name]; !ok {
			fail(e.line, "the filter |%s is not known", name)
		}
	} else if _, ok := k.tests[name]; !ok {
		fail(e.line, "the test \"is %s\" is not known", name)
	}
}

func (e *testExpr) eval(x *exec) any {
	v := e.value.eval(x)
	args := x.evalAll(e.args)
	x.line = e.line
	x.step()
	return e.fn.run(x, v, args)
}

// attr is value.name: an attribute, or else an item.
func (x *exec) attr(v any, name string) any {
	x.step()
	if u, ok := v.(undefined); ok {
		x.fail("%s is undefined: it has no %s", u.what, name)
	}
	if m := x.method(v, name); m != nil {
		return m
	}
	switch v := v.(type) {
	case *Dict:
		if item, ok := v.get(name); ok {
			return item
		}
	case *namespace:
		if item, ok := v.vars[name]; ok {
			return item
		}
	case *loop:
		return v.attr(x, name)
	}
	return undefined{fmt.Sprintf("%s of a %s", name, typeName(v))}
}

// item is value[key]: an item, or else an attribute.
func (x *exec) item(v, key any) any {
	x.step()
	if u, ok := v.(undefined); ok {
		x.fail("%s is undefined: it has no items", u.what)
	}
	if d, ok := v.(*Dict); ok {
		if item, ok := d.get(key); ok {
			return item
		}
	} else if i, _, isFloat, ok := asNumber(key); ok && !isFloat {
		if s, ok := v.(span); ok {
			v = List(s.items())
		}
		if items, ok := sequence(v); ok {
			if i < 0 {
				i += int64(len(items))
			}
			if i >= 0 && i < int64(len(items)) {
				return items[i]
			}
		} else if s, ok := asText(v); ok {
			x.make(4 * len(s))
			r := []rune(s)
			if i < 0 {
				i += int64(len(r))
			}
			if i >= 0 && i < int64(len(r)) {
				return string(r[i])
			}
		}
		return undefined{fmt.Sprintf("item %d of a %s", i, typeName(v))}
	}
	if name, ok := asText(key); ok {
		if m := x.method(v, name); m != nil {
			return m
		}
		if n, ok := v.(*namespace); ok {
			if item, ok := n.vars[name]; ok {
				return item
			}
		}
		return undefined{fmt.Sprintf("%q of a %s", name, typeName(v))}
	}
	return undefined{"an item of a " + typeName(v)}
}
