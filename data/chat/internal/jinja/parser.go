// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Limits of a template.
const (
	maxSource = 1 << 20 // bytes
	maxTokens = 1 << 18
	maxNest   = 200  // of expressions and blocks in each other
	maxChain  = 1000 // of operators side by side
)

type parser struct {
	tokens []token
	pos    int
	nest   int
	loops  int             // for loops around, within the same function
	names  map[string]bool // that the template gives values
	reads  map[string]bool // names that the macro at hand reads
	calls  []call          // of names
	spans  bool            // there is a generation block
}

// call is a call of a name, which must be a function.
type call struct {
	name string
	line int
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokenEOF {
		p.pos++
	}
	return t
}

// is reports whether the next token is an operator or a name of the language.
func (p *parser) is(kind tokenKind, texts ...string) bool {
	t := p.peek()
	return t.kind == kind && slices.Contains(texts, t.text)
}

func (p *parser) skip(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(kind tokenKind, text, where string) token {
	t := p.next()
	if t.kind != kind || text != "" && t.text != text {
		want := text
		if want == "" {
			want = "a name"
		}
		fail(t.line, "%s needs %s, not %s", where, want, t.describe())
	}
	return t
}

// enter counts what is in each other; its result leaves.
func (p *parser) enter() func() {
	p.nest++
	if p.nest > maxNest {
		fail(p.peek().line, "more than %d constructs in each other", maxNest)
	}
	return func() { p.nest-- }
}

// parse reads a template.
func parse(source string) (body []node, spans bool) {
	p := &parser{tokens: lex(source), names: map[string]bool{"caller": true}, reads: map[string]bool{}}
	body = p.body("the template")
	if t := p.peek(); t.kind != tokenEOF {
		fail(t.line, "{%% %s %%} without its beginning", p.tokens[p.pos+1].text)
	}
	for _, c := range p.calls {
		if _, ok := globals[c.name]; !ok && !p.names[c.name] {
			fail(c.line, "the function %s() is not known", c.name)
		}
	}
	return body, p.spans
}

// body reads up to a block tag that is one of the ends, which is left with its
// opening read, or to the end of the template.
func (p *parser) body(of string, ends ...string) []node {
	defer p.enter()()
	var out []node
	for {
		switch t := p.peek(); t.kind {
		case tokenEOF:
			if len(ends) > 0 {
				fail(t.line, "%s has no {%% %s %%}", of, ends[len(ends)-1])
			}
			return out
		case tokenData:
			p.next()
			out = append(out, &dataNode{t.text})
		case tokenVar:
			p.next()
			n := &outputNode{line: t.line, value: p.tupleOr(p.condition, tokenVarEnd)}
			p.end(tokenVarEnd, "}}")
			out = append(out, n)
		case tokenBlock:
			name := p.tokens[p.pos+1]
			if name.kind == tokenName && (slices.Contains(ends, name.text) || len(ends) == 0 && strings.HasPrefix(name.text, "end")) {
				if len(ends) > 0 {
					p.pos++
				}
				return out
			}
			p.next()
			out = append(out, p.statement())
		default:
			fail(t.line, "unexpected %s", t.describe())
		}
	}
}

func (p *parser) end(kind tokenKind, text string) {
	if t := p.next(); t.kind != kind {
		fail(t.line, "%s is not understood here: %s was expected", t.describe(), text)
	}
}

func (p *parser) statement() node {
	t := p.next()
	if t.kind != tokenName {
		fail(t.line, "{%% needs a name, not %s", t.describe())
	}
	switch t.text {
	case "for":
		return p.forLoop(t.line)
	case "if":
		return p.branches(t.line)
	case "set":
		return p.set(t.line)
	case "macro":
		return p.macro(t.line)
	case "call":
		return p.callBlock(t.line)
	case "with":
		return p.with(t.line)
	case "filter":
		f := p.filters(&bodyExpr{}, t.line, true)
		p.end(tokenEnd, "%}")
		body := p.inner("filter", false)
		return &filterNode{t.line, f, body}
	case "generation":
		p.spans = true
		p.end(tokenEnd, "%}")
		return &generationNode{t.line, p.inner("generation", true)}
	case "break", "continue":
		if p.loops == 0 {
			fail(t.line, "{%% %s %%} outside of a for loop", t.text)
		}
		p.end(tokenEnd, "%}")
		return &jumpNode{t.text == "break"}
	case "include", "import", "from", "extends", "block":
		fail(t.line, "{%% %s %%} is refused: a chat template cannot use other templates", t.text)
	case "else", "elif":
		fail(t.line, "{%% %s %%} without its beginning", t.text)
	}
	if strings.HasPrefix(t.text, "end") {
		fail(t.line, "{%% %s %%} without its beginning", t.text)
	}
	fail(t.line, "the block {%% %s %%} is not known", t.text)
	return nil
}

// inner reads the body of a block to its end. A function's body is not in the
// loops around it.
func (p *parser) inner(name string, function bool) []node {
	loops := p.loops
	if function {
		p.loops = 0
	}
	body := p.body("{% "+name+" %}", "end"+name)
	p.next()
	p.end(tokenEnd, "%}")
	p.loops = loops
	return body
}

func (p *parser) forLoop(line int) node {
	n := &forNode{line: line, targets: p.targets("in")}
	p.expect(tokenName, "in", "{% for %}")
	n.iter = p.tupleOr(p.or, tokenEnd)
	if p.skip(tokenName, "if") {
		n.cond = p.condition()
	}
	n.recursive = p.skip(tokenName, "recursive")
	if n.recursive {
		p.names["loop"] = true
	}
	p.end(tokenEnd, "%}")
	p.loops++
	n.body = p.body("{% for %}", "else", "endfor")
	p.loops--
	if p.next().text == "else" {
		p.end(tokenEnd, "%}")
		n.orElse = p.body("{% for %}", "endfor")
		p.next()
	}
	p.end(tokenEnd, "%}")
	return n
}

func (p *parser) branches(line int) node {
	n := &ifNode{}
	for {
		b := branch{cond: p.tupleOr(p.condition, tokenEnd)}
		p.end(tokenEnd, "%}")
		b.body = p.body("{% if %}", "elif", "else", "endif")
		n.branches = append(n.branches, b)
		if len(n.branches) > maxChain {
			fail(line, "more than %d branches", maxChain)
		}
		switch p.next().text {
		case "elif":
			continue
		case "else":
			p.end(tokenEnd, "%}")
			n.orElse = p.body("{% if %}", "endif")
			p.next()
		}
		p.end(tokenEnd, "%}")
		return n
	}
}

// targets reads the names that values are given to.
func (p *parser) targets(stops ...string) target {
	var t target
	for {
		if p.is(tokenOperator, "(") && len(t.parts) == 0 && t.name == "" {
			p.next()
			t = p.targets(")")
			p.expect(tokenOperator, ")", "a list of names")
			return t
		}
		name := p.expect(tokenName, "", "an assignment")
		if name.text == "true" || name.text == "false" || name.text == "none" || name.text == "True" || name.text == "False" || name.text == "None" || name.text == "loop" {
			fail(name.line, "%s cannot be given a value", name.text)
		}
		p.names[name.text] = true
		part := target{name: name.text, line: name.line}
		if p.skip(tokenOperator, ".") {
			part.attr = p.expect(tokenName, "", "an assignment").text
			if strings.HasPrefix(part.attr, "_") {
				fail(name.line, "%s.%s cannot be given a value", name.text, part.attr)
			}
			return part
		}
		t.parts = append(t.parts, part)
		if !p.skip(tokenOperator, ",") {
			if len(t.parts) == 1 && !t.tuple {
				return part
			}
			t.tuple = true
			return t
		}
		t.tuple = true
		if p.peek().kind != tokenName || p.is(tokenName, stops...) {
			return t
		}
	}
}

func (p *parser) set(line int) node {
	n := &setNode{line: line, to: p.targets()}
	if p.skip(tokenOperator, "=") {
		n.value = p.tupleOr(p.condition, tokenEnd)
		p.end(tokenEnd, "%}")
		return n
	}
	n.value = &bodyExpr{}
	if p.is(tokenOperator, "|") {
		n.value = p.filters(n.value, line, false)
	}
	p.end(tokenEnd, "%}")
	n.body, n.block = p.inner("set", true), true
	return n
}

// signature reads the parameters of a macro or a call block.
func (p *parser) signature(f *function) {
	p.expect(tokenOperator, "(", "a macro")
	for !p.skip(tokenOperator, ")") {
		if len(f.params) > 0 {
			p.expect(tokenOperator, ",", "a list of parameters")
			if p.skip(tokenOperator, ")") {
				break
			}
		}
		name := p.expect(tokenName, "", "a list of parameters")
		p.names[name.text] = true
		param := param{name: name.text}
		if p.skip(tokenOperator, "=") {
			param.value = p.condition()
		} else if n := len(f.params); n > 0 && f.params[n-1].value != nil {
			fail(name.line, "parameter %s without a default comes after one with a default", name.text)
		}
		f.params = append(f.params, param)
	}
	p.end(tokenEnd, "%}")
}

func (p *parser) macro(line int) node {
	name := p.expect(tokenName, "", "{% macro %}")
	p.names[name.text] = true
	f := &function{name: name.text, line: line}
	p.signature(f)
	p.names["varargs"], p.names["kwargs"] = true, true
	outer := p.reads
	p.reads = map[string]bool{}
	f.body = p.inner("macro", true)
	f.varargs, f.kwargs = p.reads["varargs"], p.reads["kwargs"]
	maps.Copy(outer, p.reads)
	p.reads = outer
	return &macroNode{f}
}

func (p *parser) callBlock(line int) node {
	f := &function{name: "caller", line: line}
	if p.is(tokenOperator, "(") {
		open := p.pos
		p.next()
		for depth := 1; depth > 0; { // the signature's end is not the tag's end
			switch t := p.next(); {
			case t.kind == tokenEOF || t.kind == tokenEnd:
				fail(line, "{%% call %%} has parameters without an end")
			case t.kind == tokenOperator && t.text == "(":
				depth++
			case t.kind == tokenOperator && t.text == ")":
				depth--
			}
		}
		after := p.pos
		sub := &parser{tokens: slices.Concat(p.tokens[open:after], []token{{tokenEnd, "%}", line}, {tokenEOF, "", line}}), names: p.names, reads: p.reads, nest: p.nest}
		sub.signature(f)
		p.calls = append(p.calls, sub.calls...)
	}
	e := p.unary(true)
	c, ok := e.(*callExpr)
	if !ok {
		fail(line, "{%% call %%} needs a call of a macro")
	}
	p.end(tokenEnd, "%}")
	f.body = p.inner("call", true)
	return &callNode{line, c, f}
}

func (p *parser) with(line int) node {
	n := &withNode{line: line}
	for !p.is(tokenEnd, "%}") {
		if len(n.to) > 0 {
			p.expect(tokenOperator, ",", "{% with %}")
		}
		name := p.expect(tokenName, "", "{% with %}")
		p.names[name.text] = true
		p.expect(tokenOperator, "=", "{% with %}")
		n.to = append(n.to, target{name: name.text, line: name.line})
		n.values = append(n.values, p.condition())
	}
	p.end(tokenEnd, "%}")
	n.body = p.inner("with", false)
	return n
}

// number makes a value of the text of a number.
func number(t token) any {
	if t.kind == tokenInt {
		v, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			fail(t.line, "the number %.40q is too large", t.text)
		}
		return v
	}
	v, err := strconv.ParseFloat(t.text, 64)
	if err != nil {
		fail(t.line, "the number %.40q is too large", t.text)
	}
	return v
}
