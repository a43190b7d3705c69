// SPDX-License-Identifier: Apache-2.0

package jinja

import "unicode/utf8"

// node is a part of a template that writes or does something. jump says that a
// loop around is to be left or gone on with.
type node interface{ run(x *exec) jump }

type jump uint8

const (
	jumpNone jump = iota
	jumpBreak
	jumpContinue
)

type (
	dataNode   struct{ text string }
	outputNode struct {
		value expr
		line  int
	}
	branch struct {
		cond expr
		body []node
	}
	ifNode struct {
		branches []branch
		orElse   []node
	}
	forNode struct {
		targets      target
		iter, cond   expr
		body, orElse []node
		recursive    bool
		line         int
	}
	// target is what a value is given to: a name, an attribute, or several.
	target struct {
		name, attr string
		parts      []target
		tuple      bool
		line       int
	}
	setNode struct {
		to    target
		value expr
		body  []node
		block bool
		line  int
	}
	param struct {
		name  string
		value expr
	}
	// function is a macro. As a value it has the scope in which it was made.
	function struct {
		name    string
		params  []param
		body    []node
		line    int
		varargs bool // it reads the values that have no parameter
		kwargs  bool
		scope   *scope
	}
	macroNode struct{ fn *function }
	callNode  struct {
		line int
		call *callExpr
		fn   *function
	}
	withNode struct {
		to     []target
		values []expr
		body   []node
		line   int
	}
	filterNode struct {
		line   int
		filter expr
		body   []node
	}
	generationNode struct {
		line int
		body []node
	}
	jumpNode struct{ leave bool }
)

func (x *exec) run(nodes []node) jump {
	for _, n := range nodes {
		x.step()
		if j := n.run(x); j != jumpNone {
			return j
		}
	}
	return jumpNone
}

func (n *dataNode) run(x *exec) jump {
	x.write(n.text)
	return jumpNone
}

func (n *outputNode) run(x *exec) jump {
	v := n.value.eval(x)
	x.line = n.line
	x.write(x.str(v))
	return jumpNone
}

func (n *ifNode) run(x *exec) jump {
	for _, b := range n.branches {
		if truth(b.cond.eval(x)) {
			return x.run(b.body)
		}
	}
	return x.run(n.orElse)
}

func (n *jumpNode) run(*exec) jump {
	if n.leave {
		return jumpBreak
	}
	return jumpContinue
}

// assign gives a value to a target in the scope at hand.
func (x *exec) assign(t target, v any) {
	x.line = t.line
	switch {
	case t.attr != "":
		ns, ok := x.lookup(t.name).(*namespace)
		if !ok {
			x.fail("%s.%s cannot be given a value: %s is no namespace", t.name, t.attr, t.name)
		}
		ns.vars[t.attr] = v
	case t.tuple:
		items := x.items(v)
		if len(items) != len(t.parts) {
			x.line = t.parts[0].line
			x.fail("%d values for %d names", len(items), len(t.parts))
		}
		for i, p := range t.parts {
			x.assign(p, items[i])
		}
	default:
		x.scope.vars[t.name] = v
	}
}

func (n *setNode) run(x *exec) jump {
	if !n.block {
		v := n.value.eval(x)
		x.assign(n.to, v)
		return jumpNone
	}
	var text string
	x.inScope(map[string]any{}, func() { text = x.capture(func() { x.run(n.body) }) })
	var v any
	x.inScope(map[string]any{" body": text}, func() { v = n.value.eval(x) })
	x.assign(n.to, v)
	return jumpNone
}

func (n *withNode) run(x *exec) jump {
	values := x.evalAll(n.values)
	var j jump
	x.inScope(map[string]any{}, func() {
		for i, t := range n.to {
			x.assign(t, values[i])
		}
		j = x.run(n.body)
	})
	return j
}

func (n *filterNode) run(x *exec) jump {
	var text string
	x.inScope(map[string]any{}, func() { text = x.capture(func() { x.run(n.body) }) })
	x.inScope(map[string]any{" body": text}, func() { x.write(x.str(n.filter.eval(x))) })
	return jumpNone
}

// run notes where in the whole text the block's text lies.
func (n *generationNode) run(x *exec) jump {
	start := x.out.Len()
	x.inScope(map[string]any{}, func() { x.run(n.body) })
	if x.out != x.root {
		x.lost = true
		if x.wanted {
			x.line = n.line
			x.fail("{%% generation %%} within a macro or a set block: where it lies in the text is not known")
		}
	}
	x.spans = append(x.spans, Span{start, x.out.Len()})
	return jumpNone
}

func (n *macroNode) run(x *exec) jump {
	fn := *n.fn
	fn.scope = x.scope
	x.scope.vars[fn.name] = &fn
	return jumpNone
}

func (n *callNode) run(x *exec) jump {
	caller := *n.fn
	caller.scope = x.scope
	fn := n.call.fn.eval(x)
	a := x.arguments(n.call.args, n.call.keywords)
	a.named = append(a.named, named{"caller", &caller})
	x.line = n.line
	if _, ok := fn.(*function); !ok {
		x.fail("{%% call %%} needs a macro, not a %s", typeName(fn))
	}
	x.write(x.str(x.call(fn, a)))
	return jumpNone
}

// callMacro returns what a macro writes.
func (x *exec) callMacro(fn *function, a *arguments) any {
	defer x.enter()()
	defer x.enter()()
	a.of = fn.name + "()"
	vars := make(map[string]any, len(fn.params)+1)
	outer := x.scope
	x.scope = &scope{vars, fn.scope}
	for i, p := range fn.params {
		missing := undefined{"parameter " + p.name}
		v := a.get(i, p.name, missing)
		if v == any(missing) && p.value != nil {
			v = p.value.eval(x)
		}
		vars[p.name] = v
	}
	if fn.varargs {
		vars["varargs"] = tuple(a.list[min(len(fn.params), len(a.list)):])
		a.used = len(a.list)
	}
	if caller := a.get(-1, "caller", nil); caller != nil {
		vars["caller"] = caller
	}
	if fn.kwargs {
		rest := new(Dict)
		for _, n := range a.named {
			rest.Set(n.name, n.value)
		}
		vars["kwargs"], a.named = rest, nil
	}
	a.none(x)
	text := x.capture(func() { x.run(fn.body) })
	x.scope = outer
	return text
}

func (n *forNode) run(x *exec) jump {
	iter := n.iter.eval(x)
	return n.loop(x, iter, 0)
}

// loop goes through the items of iter.
func (n *forNode) loop(x *exec, iter any, depth int) jump {
	x.line = n.line
	items := x.items(iter)
	if n.cond != nil {
		kept := make([]any, 0, len(items))
		for _, item := range items {
			x.step()
			x.inScope(map[string]any{}, func() {
				x.assign(n.targets, item)
				if truth(n.cond.eval(x)) {
					kept = append(kept, item)
				}
			})
		}
		items = kept
	}
	l := &loop{items: items, depth: depth, node: n}
	if n.recursive {
		l.scope = x.scope
	}
	left := false
	for i, item := range items {
		x.step()
		l.at = i
		var j jump
		x.inScope(map[string]any{"loop": l}, func() {
			x.assign(n.targets, item)
			j = x.run(n.body)
		})
		if j == jumpBreak {
			left = true
			break
		}
	}
	if !left && len(items) == 0 {
		var j jump
		x.inScope(map[string]any{}, func() { j = x.run(n.orElse) })
		return j
	}
	return jumpNone
}

// loop is the variable of that name.
type loop struct {
	items   []any
	at      int
	depth   int
	node    *forNode
	scope   *scope // of a recursive loop
	changed any
	began   bool // changed has a value
}

func (l *loop) attr(x *exec, name string) any {
	n := int64(len(l.items))
	switch i := int64(l.at); name {
	case "index":
		return i + 1
	case "index0":
		return i
	case "revindex":
		return n - i
	case "revindex0":
		return n - i - 1
	case "first":
		return i == 0
	case "last":
		return i == n-1
	case "length":
		return n
	case "depth":
		return int64(l.depth + 1)
	case "depth0":
		return int64(l.depth)
	case "previtem":
		if i > 0 {
			return l.items[i-1]
		}
		return undefined{"the item before the first"}
	case "nextitem":
		if i+1 < n {
			return l.items[i+1]
		}
		return undefined{"the item after the last"}
	case "cycle":
		return &method{"loop.cycle", func(x *exec, a *arguments) any {
			if len(a.list) == 0 {
				x.fail("loop.cycle() needs values")
			}
			return a.list[l.at%len(a.list)]
		}}
	case "changed":
		return &method{"loop.changed", func(x *exec, a *arguments) any {
			v := tuple(a.list)
			if l.began && x.equal(l.changed, v) {
				return false
			}
			l.changed, l.began = v, true
			return true
		}}
	}
	return undefined{"loop." + name}
}

// recurse runs a recursive loop with other items, and returns what it writes.
func (l *loop) recurse(x *exec, a *arguments) any {
	if !l.node.recursive || len(a.list) != 1 {
		x.fail("loop() needs a recursive loop and one value")
	}
	defer x.enter()()
	outer := x.scope
	x.scope = l.scope
	text := x.capture(func() { l.node.loop(x, a.list[0], l.depth+1) })
	x.scope = outer
	return text
}

// runes is the number of characters of a text.
func runes(s string) int { return utf8.RuneCountInString(s) }
