// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"strings"
)

// Einsum computes a sum of products that spec describes: a letter for each dim
// of each operand, operands apart by commas, and after -> those of the result.
// Letters that the result lacks are summed over.
//
//	Einsum("ij,jk->ik", a, b)      a matrix product
//	Einsum("bhqd,bhkd->bhqk", q, k) scores of attention
//	Einsum("...ii->...i", a)       diagonals
//
// An ellipsis stands for any number of dims, which are broadcast. A letter
// twice in an operand takes the diagonal. Without -> the result has the letters
// that are there once, in the order of the alphabet. Operands are contracted from the
// left, two at a time, each pair as one batched matrix product.
func Einsum(spec string, operands ...*Tensor) *Tensor {
	present("einsum", operands...)
	e := parseEinsum(spec, operands)
	terms := make([]einsumTerm, len(operands))
	for i, t := range operands {
		terms[i] = e.term(i, t)
	}
	e.checkSizes(terms)
	acc := terms[0]
	for i, next := range terms[1:] {
		keep := slices.Clone(e.out)
		for _, t := range terms[i+2:] {
			keep = append(keep, t.labels...)
		}
		acc = contract(acc, next, keep)
	}
	acc = acc.sumAllBut(e.out)
	order := make([]int, len(e.out))
	for i, l := range e.out {
		order[i] = slices.Index(acc.labels, l)
		if order[i] < 0 { // a dim of size 1 of the result that was broadcast away
			acc.t = acc.t.Unsqueeze(-1)
			acc.labels = append(slices.Clone(acc.labels), l)
			order[i] = len(acc.labels) - 1
		}
	}
	return acc.t.Permute(order...)
}

// label is a dim of an einsum: a letter, or a negative number for the dims
// under an ellipsis, counted from its end.
type label = int

// einsum is a parsed spec.
type einsum struct {
	spec     string
	operands []*Tensor
	in       [][]label
	out      []label
}

// einsumTerm is a tensor with a label a dim.
type einsumTerm struct {
	t      *Tensor
	labels []label
}

func (e *einsum) fail(format string, args ...any) {
	fail("einsum", e.operands, "spec %q: "+format, append([]any{e.spec}, args...)...)
}

func parseEinsum(spec string, operands []*Tensor) *einsum {
	e := &einsum{spec: spec, operands: operands}
	if len(operands) == 0 {
		e.fail("there are no operands")
	}
	left, right, explicit := strings.Cut(strings.ReplaceAll(spec, " ", ""), "->")
	inputs := strings.Split(left, ",")
	if len(inputs) != len(operands) {
		e.fail("it describes %d operands, there are %d", len(inputs), len(operands))
	}
	seen := map[label]int{}
	widest := 0 // dims under an ellipsis
	for i, in := range inputs {
		dims := len(operands[i].shape)
		hidden := dims - len(strings.ReplaceAll(in, "...", ""))
		if !strings.Contains(in, "...") && hidden != 0 || hidden < 0 {
			e.fail("%q has letters for %d dims, operand %d has %d", in, dims-hidden, i, dims)
		}
		labels := e.labels(in, hidden)
		if strings.Contains(in, "...") {
			widest = max(widest, hidden)
		}
		e.in = append(e.in, labels)
		for _, l := range labels {
			seen[l]++
		}
	}
	if !explicit {
		for h := widest; h > 0; h-- {
			e.out = append(e.out, -h)
		}
		var once []label
		for l, n := range seen {
			if l > 0 && n == 1 {
				once = append(once, l)
			}
		}
		slices.Sort(once)
		e.out = append(e.out, once...)
		return e
	}
	e.out = e.labels(right, widest)
	for i, l := range e.out {
		if slices.Contains(e.out[:i], l) {
			e.fail("%q is twice in the result", string(rune(l)))
		}
		if seen[l] == 0 && l > 0 {
			e.fail("%q of the result is in no operand", string(rune(l)))
		}
	}
	return e
}

// labels reads the letters of one term, with hidden dims under its ellipsis.
func (e *einsum) labels(term string, hidden int) []label {
	var out []label
	before, after, found := strings.Cut(term, "...")
	for i, part := range []string{before, after} {
		if i == 1 && found {
			for h := hidden; h > 0; h-- {
				out = append(out, -h)
			}
		}
		for _, r := range part {
			if r < 'A' || r > 'Z' && r < 'a' || r > 'z' {
				e.fail("%q is not a letter", string(r))
			}
			out = append(out, label(r))
		}
	}
	return out
}

// term takes the diagonals of an operand that has a letter twice.
func (e *einsum) term(i int, t *Tensor) einsumTerm {
	labels := slices.Clone(e.in[i])
	for first := 0; first < len(labels); first++ {
		again := slices.Index(labels[first+1:], labels[first])
		if again < 0 {
			continue
		}
		second := first + 1 + again
		if t.shape[first] != t.shape[second] {
			e.fail("%q stands for dims of %d and %d elements in operand %d", string(rune(labels[first])), t.shape[first], t.shape[second], i)
		}
		l := labels[first]
		t = t.Diagonal(0, first, second) // becomes the last dim
		labels = append(slices.DeleteFunc(labels, func(x label) bool { return x == l }), l)
		first--
	}
	return einsumTerm{t, labels}
}

// checkSizes makes a label stand for one size, and takes it off operands that
// have size 1 there: they are broadcast.
func (e *einsum) checkSizes(terms []einsumTerm) {
	sizes := map[label]int{}
	for i, term := range terms {
		for d, l := range term.labels {
			size, old := term.t.shape[d], sizes[l]
			if _, ok := sizes[l]; ok && old != size && old != 1 && size != 1 {
				name := "the ellipsis"
				if l > 0 {
					name = `"` + string(rune(l)) + `"`
				}
				e.fail("%s stands for %d elements in operand %d and for %d in another", name, size, i, old)
			}
			if old == 0 || old == 1 {
				sizes[l] = size
			}
		}
	}
	for i := range terms {
		for d := len(terms[i].labels) - 1; d >= 0; d-- {
			if terms[i].t.shape[d] == 1 && sizes[terms[i].labels[d]] != 1 {
				terms[i].t = terms[i].t.squeeze(d)
				terms[i].labels = slices.Delete(slices.Clone(terms[i].labels), d, d+1)
			}
		}
	}
}

// sumAllBut sums over the labels that are not in keep.
func (a einsumTerm) sumAllBut(keep []label) einsumTerm {
	var dims []int
	var left []label
	for d, l := range a.labels {
		if slices.Contains(keep, l) {
			left = append(left, l)
		} else {
			dims = append(dims, d)
		}
	}
	if len(dims) > 0 {
		a.t = a.t.Sum(dims...)
	}
	return einsumTerm{a.t, left}
}

// contract multiplies two terms and sums over the labels that are not in keep.
func contract(a, b einsumTerm, keep []label) einsumTerm {
	a = a.sumAllBut(append(slices.Clone(keep), b.labels...))
	b = b.sumAllBut(append(slices.Clone(keep), a.labels...))
	var batch, inner, rows, cols []label
	for _, l := range a.labels {
		switch {
		case !slices.Contains(b.labels, l):
			rows = append(rows, l)
		case slices.Contains(keep, l):
			batch = append(batch, l)
		default:
			inner = append(inner, l)
		}
	}
	for _, l := range b.labels {
		if !slices.Contains(a.labels, l) {
			cols = append(cols, l)
		}
	}
	left, shape := a.arrange(batch, rows, inner)
	right, rightShape := b.arrange(batch, inner, cols)
	out := slices.Concat(shape[:len(batch)+len(rows)], rightShape[len(batch)+len(inner):])
	var product *Tensor
	if len(inner) > 0 {
		product = left.MatMul(right)
	} else {
		product = left.Mul(right) // [batch, rows, 1] · [batch, 1, cols]
	}
	return einsumTerm{product.Reshape(out...), slices.Concat(batch, rows, cols)}
}

// arrange returns the term as [batch, x, y], each of them several dims in one,
// and the sizes of these dims.
func (a einsumTerm) arrange(batch, x, y []label) (*Tensor, []int) {
	labels := slices.Concat(batch, x, y)
	order := make([]int, len(labels))
	for i, l := range labels {
		order[i] = slices.Index(a.labels, l)
	}
	t := a.t.Permute(order...)
	shape := t.Shape()
	n, m := len(batch), len(batch)+len(x)
	return t.merge(numElems(shape[:n]), numElems(shape[n:m]), numElems(shape[m:])), shape
}

// merge is Reshape to three dims that leaves a transposed matrix as it is.
func (t *Tensor) merge(batch, rows, cols int) *Tensor {
	n := len(t.shape)
	if n == 2 && t.shape[0] == rows && t.shape[1] == cols {
		return t.Unsqueeze(0)
	}
	if n == 3 && t.shape[0] == batch && t.shape[1] == rows && t.shape[2] == cols {
		return t
	}
	return t.Reshape(batch, rows, cols)
}

// Dot returns the sum of products of two vectors of one size.
func (t *Tensor) Dot(u *Tensor) *Tensor {
	present("dot", t, u)
	if len(t.shape) != 1 || !slices.Equal(t.shape, u.shape) {
		fail("dot", []*Tensor{t, u}, "wants two vectors of one size")
	}
	return t.Mul(u).Sum()
}

// Outer returns the products of all elements of two vectors: [n] and [m] give
// [n, m].
func (t *Tensor) Outer(u *Tensor) *Tensor {
	present("outer", t, u)
	if len(t.shape) != 1 || len(u.shape) != 1 {
		fail("outer", []*Tensor{t, u}, "wants two vectors")
	}
	return t.Unsqueeze(1).Mul(u.Unsqueeze(0))
}
