// SPDX-License-Identifier: Apache-2.0

package jinja

import "slices"

// tupleOr reads an expression, or several with commas between, which are a
// tuple. Jinja calls this parse_tuple.
func (p *parser) tupleOr(read func() expr, end tokenKind) expr {
	line := p.peek().line
	first := read()
	if !p.is(tokenOperator, ",") {
		return first
	}
	t := &listExpr{tuple: true, items: []expr{first}, line: line}
	for p.skip(tokenOperator, ",") {
		if p.peek().kind == end || end == tokenOperator && p.is(tokenOperator, ")", "]") {
			break
		}
		t.items = append(t.items, read())
	}
	return t
}

func (p *parser) condition() expr {
	defer p.enter()()
	e := p.or()
	for n := 0; p.is(tokenName, "if"); n++ {
		line := p.next().line
		c := &condExpr{value: e, cond: p.or(), line: line}
		if p.skip(tokenName, "else") {
			c.orElse = p.condition()
		}
		p.chain(n, line)
		e = c
	}
	return e
}

func (p *parser) chain(n, line int) {
	if n >= maxChain {
		fail(line, "more than %d operators side by side", maxChain)
	}
}

func (p *parser) or() expr {
	e := p.and()
	for n := 0; p.is(tokenName, "or"); n++ {
		line := p.next().line
		p.chain(n, line)
		e = &logicExpr{or: true, left: e, right: p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for n := 0; p.is(tokenName, "and"); n++ {
		line := p.next().line
		p.chain(n, line)
		e = &logicExpr{left: e, right: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if p.is(tokenName, "not") {
		defer p.enter()()
		p.next()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	first := p.additive()
	c := &compareExpr{first: first}
	for {
		t := p.peek()
		op := t.text
		switch {
		case t.kind == tokenOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, op):
			p.next()
		case t.kind == tokenName && op == "in":
			p.next()
		case t.kind == tokenName && op == "not" && p.tokens[p.pos+1].kind == tokenName && p.tokens[p.pos+1].text == "in":
			p.pos += 2
			op = "not in"
		default:
			if len(c.ops) == 0 {
				return first
			}
			return c
		}
		p.chain(len(c.ops), t.line)
		c.line = t.line
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.additive())
	}
}

// binary reads operators of one strength, from the left.
func (p *parser) binary(operand func() expr, ops ...string) expr {
	e := operand()
	for n := 0; p.is(tokenOperator, ops...); n++ {
		t := p.next()
		p.chain(n, t.line)
		e = &binaryExpr{op: t.text, left: e, right: operand(), line: t.line}
	}
	return e
}

func (p *parser) additive() expr { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expr {
	line := p.peek().line
	first := p.multiplicative()
	if !p.is(tokenOperator, "~") {
		return first
	}
	c := &concatExpr{parts: []expr{first}, line: line}
	for p.skip(tokenOperator, "~") {
		c.parts = append(c.parts, p.multiplicative())
	}
	return c
}

func (p *parser) multiplicative() expr { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() expr {
	return p.binary(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilter bool) expr {
	defer p.enter()()
	t := p.peek()
	var e expr
	if t.kind == tokenOperator && (t.text == "-" || t.text == "+") {
		p.next()
		e = &signExpr{minus: t.text == "-", value: p.unary(false), line: t.line}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filters(e, t.line, false)
	}
	return e
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tokenName:
		if v, ok := constants[t.text]; ok {
			return &constExpr{v}
		}
		if slices.Contains([]string{"and", "or", "not", "in", "is", "if", "else"}, t.text) {
			fail(t.line, "unexpected %q in an expression", t.text)
		}
		p.reads[t.text] = true
		return &nameExpr{t.text, t.line}
	case tokenString:
		text := t.text
		for p.peek().kind == tokenString {
			text += p.next().text
		}
		return &constExpr{text}
	case tokenInt, tokenFloat:
		return &constExpr{number(t)}
	case tokenOperator:
		switch t.text {
		case "(":
			if p.skip(tokenOperator, ")") {
				return &listExpr{tuple: true, line: t.line}
			}
			e := p.tupleOr(p.condition, tokenOperator)
			p.expect(tokenOperator, ")", "a parenthesis")
			return e
		case "[":
			return &listExpr{items: p.items("]"), line: t.line}
		case "{":
			return p.dict(t.line)
		}
	}
	fail(t.line, "unexpected %s in an expression", t.describe())
	return nil
}

// items reads expressions up to a closing bracket.
func (p *parser) items(closer string) []expr {
	var out []expr
	for !p.skip(tokenOperator, closer) {
		if len(out) > 0 {
			p.expect(tokenOperator, ",", "a list")
			if p.skip(tokenOperator, closer) {
				break
			}
		}
		out = append(out, p.condition())
	}
	return out
}

func (p *parser) dict(line int) expr {
	d := &dictExpr{line: line}
	for !p.skip(tokenOperator, "}") {
		if len(d.keys) > 0 {
			p.expect(tokenOperator, ",", "a dict")
			if p.skip(tokenOperator, "}") {
				break
			}
		}
		d.keys = append(d.keys, p.condition())
		p.expect(tokenOperator, ":", "a dict")
		d.values = append(d.values, p.condition())
	}
	return d
}

func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		t := p.peek()
		p.chain(n, t.line)
		switch {
		case t.kind == tokenOperator && (t.text == "." || t.text == "["):
			p.next()
			e = p.subscript(e, t)
		case t.kind == tokenOperator && t.text == "(":
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr, open token) expr {
	if open.text == "." {
		t := p.next()
		switch t.kind {
		case tokenName:
			return &attrExpr{e, t.text, t.line}
		case tokenInt:
			return &itemExpr{e, &constExpr{number(t)}, t.line}
		}
		fail(t.line, "a name or a number must follow the dot, not %s", t.describe())
	}
	var parts []expr
	for !p.skip(tokenOperator, "]") {
		if len(parts) > 0 {
			p.expect(tokenOperator, ",", "a subscript")
		}
		parts = append(parts, p.index())
	}
	switch len(parts) {
	case 0:
		fail(open.line, "a subscript is empty")
	case 1:
		return &itemExpr{e, parts[0], open.line}
	}
	return &itemExpr{e, &listExpr{tuple: true, items: parts, line: open.line}, open.line}
}

// index reads what is between brackets: an expression or a slice.
func (p *parser) index() expr {
	s := &sliceExpr{line: p.peek().line}
	if !p.is(tokenOperator, ":") {
		e := p.condition()
		if !p.is(tokenOperator, ":") {
			return e
		}
		s.start = e
	}
	p.next()
	at := func() expr {
		if p.is(tokenOperator, ":", "]", ",") {
			return nil
		}
		return p.condition()
	}
	s.stop = at()
	if p.skip(tokenOperator, ":") {
		s.step = at()
	}
	return s
}

// arguments reads what a call, a filter or a test is given.
func (p *parser) arguments() (args []expr, keywords []keyword) {
	open := p.expect(tokenOperator, "(", "a call")
	for n := 0; !p.skip(tokenOperator, ")"); n++ {
		if n > 0 {
			p.expect(tokenOperator, ",", "a call")
			if p.skip(tokenOperator, ")") {
				break
			}
		}
		switch t := p.peek(); {
		case p.is(tokenOperator, "*", "**"):
			fail(t.line, "%s in a call is not supported", t.text)
		case t.kind == tokenName && p.tokens[p.pos+1].kind == tokenOperator && p.tokens[p.pos+1].text == "=":
			p.pos += 2
			keywords = append(keywords, keyword{t.text, p.condition()})
		case len(keywords) > 0:
			fail(open.line, "an argument without a name comes after one with a name")
		default:
			args = append(args, p.condition())
		}
	}
	return args, keywords
}

func (p *parser) call(e expr) expr {
	line := p.peek().line
	switch f := e.(type) {
	case *nameExpr:
		p.calls = append(p.calls, call{f.name, line})
	case *attrExpr:
		if !methodNames[f.name] && !p.names[f.name] {
			fail(line, "the method .%s() is not known", f.name)
		}
	}
	c := &callExpr{fn: e, line: line}
	c.args, c.keywords = p.arguments()
	return c
}

// filters reads filters, tests and calls after an expression; first is set
// where a filter's name comes without its bar.
func (p *parser) filters(e expr, line int, first bool) expr {
	for n := 0; ; n++ {
		p.chain(n, line)
		switch {
		case first || p.is(tokenOperator, "|"):
			if !first {
				p.next()
			}
			first = false
			name := p.expect(tokenName, "", "a filter")
			fn, ok := known().filters[name.text]
			if !ok {
				fail(name.line, "the filter |%s is not known", name.text)
			}
			f := &filterExpr{value: e, name: name.text, fn: fn, line: name.line}
			if p.is(tokenOperator, "(") {
				f.args, f.keywords = p.arguments()
			}
			f.check(known())
			e = f
		case p.is(tokenName, "is"):
			p.next()
			e = p.test(e)
		case p.is(tokenOperator, "("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) test(e expr) expr {
	not := p.skip(tokenName, "not")
	name := p.expect(tokenName, "", "a test")
	fn, ok := known().tests[name.text]
	if !ok {
		fail(name.line, "the test \"is %s\" is not known", name.text)
	}
	t := &testExpr{value: e, name: name.text, fn: fn, line: name.line}
	switch next := p.peek(); {
	case p.is(tokenOperator, "("):
		t.args, _ = p.arguments()
	case p.is(tokenName, "is"):
		fail(next.line, "a test after a test needs parentheses")
	case next.kind == tokenName && !p.is(tokenName, "else", "or", "and", "if", "in", "not", "recursive"), next.kind == tokenString, next.kind == tokenInt, next.kind == tokenFloat, p.is(tokenOperator, "[", "{"):
		t.args = []expr{p.postfix(p.primary())}
	}
	if want := fn.args; len(t.args) != want {
		fail(name.line, "the test \"is %s\" takes %d values, not %d", name.text, want, len(t.args))
	}
	if not {
		return &notExpr{t}
	}
	return t
}
