// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"html"
	"math"
	"math/big"
	"strings"
)

func (e *binaryExpr) eval(x *exec) any {
	left := e.left.eval(x)
	right := e.right.eval(x)
	x.line = e.line
	x.step()
	for _, v := range []any{left, right} {
		if u, ok := v.(undefined); ok {
			x.fail("%s is undefined: it has no %s", u.what, e.op)
		}
	}
	if v, ok := x.joined(e.op, left, right); ok {
		return v
	}
	i, f, isFloat, ok := asNumber(left)
	j, g, isFloat2, ok2 := asNumber(right)
	switch {
	case !ok || !ok2:
		x.fail("%s %s %s is not possible", typeName(left), e.op, typeName(right))
	case isFloat || isFloat2 || e.op == "/" || e.op == "**" && j < 0:
		return x.float(f, g, e.op)
	}
	return x.int(i, j, e.op)
}

// joined computes + and * of what is no number.
func (x *exec) joined(op string, left, right any) (any, bool) {
	switch op {
	case "+":
		if v, ok := x.joinText(left, right); ok {
			return v, true
		}
		l, ok := left.(List)
		r, ok2 := right.(List)
		if ok && ok2 {
			x.make(16 * (len(l) + len(r)))
			return append(append(make(List, 0, len(l)+len(r)), l...), r...), true
		}
		t, ok := left.(tuple)
		u, ok2 := right.(tuple)
		if ok && ok2 {
			x.make(16 * (len(t) + len(u)))
			return append(append(make(tuple, 0, len(t)+len(u)), t...), u...), true
		}
	case "*":
		if _, _, _, ok := asNumber(left); ok {
			left, right = right, left
		}
		n, _, isFloat, ok := asNumber(right)
		if !ok || isFloat {
			return nil, false
		}
		n = max(n, 0)
		if s, ok := asText(left); ok {
			x.makeTimes(len(s), n)
			return strings.Repeat(s, int(n)), true
		}
		if l, ok := sequence(left); ok {
			x.makeTimes(16*len(l), n)
			var out []any
			for range n {
				out = append(out, l...)
				if len(l) == 0 {
					break
				}
			}
			if _, ok := left.(tuple); ok {
				return tuple(out), true
			}
			return List(out), true
		}
	case "%":
		if _, ok := asText(left); ok {
			x.fail("%% with a string is not supported: use ~ or the method .format()")
		}
	}
	return nil, false
}

func (x *exec) makeTimes(size int, n int64) {
	if size > 0 && n > int64(maxString/size) {
		x.fail("a value of more than %d bytes", maxString)
	}
	x.make(size * int(n))
}

func (x *exec) joinText(left, right any) (any, bool) {
	l, ok := asText(left)
	r, ok2 := asText(right)
	if !ok || !ok2 {
		return nil, false
	}
	lm, isMarkup := left.(markup)
	rm, isMarkup2 := right.(markup)
	x.make(len(l) + len(r))
	switch {
	case isMarkup && isMarkup2:
		return lm + rm, true
	case isMarkup:
		return lm + markup(escape(r)), true
	case isMarkup2:
		return markup(escape(l)) + rm, true
	}
	return l + r, true
}

// escape writes characters of HTML as Jinja does.
func escape(s string) string { return html.EscapeString(s) }

// int computes with integers. What is larger than 64 bits is refused.
func (x *exec) int(i, j int64, op string) any {
	if small := int64(1 << 31); -small < i && i < small && -small < j && j < small {
		switch op {
		case "+":
			return i + j
		case "-":
			return i - j
		case "*":
			return i * j
		}
	}
	a, b, r := big.NewInt(i), big.NewInt(j), new(big.Int)
	switch op {
	case "+":
		r.Add(a, b)
	case "-":
		r.Sub(a, b)
	case "*":
		r.Mul(a, b)
	case "//", "%":
		if j == 0 {
			x.fail("a division by zero")
		}
		// Rounded down, as in Python; Go rounds towards zero.
		q, m := new(big.Int).QuoRem(a, b, new(big.Int))
		if m.Sign() != 0 && m.Sign() != b.Sign() {
			q.Sub(q, big.NewInt(1))
			m.Add(m, b)
		}
		if r = q; op == "%" {
			r = m
		}
	case "**":
		if j > 64 && i != 0 && i != 1 && i != -1 {
			x.fail("a number of more than 64 bits")
		}
		r.Exp(a, b, nil)
	}
	if !r.IsInt64() {
		x.fail("a number of more than 64 bits")
	}
	return r.Int64()
}

func (x *exec) float(f, g float64, op string) any {
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "**":
		return math.Pow(f, g)
	}
	if g == 0 {
		x.fail("a division by zero")
	}
	switch op {
	case "/":
		return f / g
	case "//":
		return math.Floor(f / g)
	}
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) {
		m += g
	}
	return m
}
