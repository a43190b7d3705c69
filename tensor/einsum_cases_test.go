// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"strings"
)

// einsumCases are named by their spec.
func einsumCases(Device) []opCase {
	var out []opCase
	for _, c := range []struct {
		spec   string
		plain  string // the spec with letters for the ellipsis and for broadcast dims, if it needs one
		shapes [][]int
	}{
		{"ij,jk->ik", "", [][]int{{2, 3}, {3, 4}}},
		{"ij,jk", "", [][]int{{2, 3}, {3, 4}}},
		{"ba", "ba->ab", [][]int{{2, 3}}},
		{"bhqd,bkhd->bhqk", "", [][]int{{2, 2, 3, 2}, {2, 3, 2, 2}}},
		{"bij,bjk->bki", "", [][]int{{2, 2, 3}, {2, 3, 2}}},
		{"i,j->ij", "", [][]int{{3}, {4}}},
		{"i,i->", "", [][]int{{4}, {4}}},
		{"ij->j", "", [][]int{{3, 4}}},
		{"ii->i", "", [][]int{{3, 3}}},
		{"iji->j", "", [][]int{{3, 2, 3}}},
		{"...ij,...jk->...ik", "abij,bjk->abik", [][]int{{2, 2, 2, 3}, {2, 3, 2}}},
		{"...ij,jk->...ik", "aij,jk->aik", [][]int{{2, 2, 3}, {3, 2}}},
		{"i...,i...", "iab,ib->ab", [][]int{{3, 2, 2}, {3, 2}}},
		{"ij,kj->ik broadcast", "ix,kj->ik", [][]int{{2, 1}, {2, 3}}},
		{"ab,bc,cd->ad", "", [][]int{{2, 3}, {3, 2}, {2, 4}}},
		{"bn,anm,bm->ba", "", [][]int{{2, 3}, {4, 3, 2}, {2, 2}}},
		{"ij,ij->ij", "", [][]int{{2, 3}, {2, 3}}},
		{"ij,k->i", "", [][]int{{2, 3}, {4}}},
	} {
		spec, _, _ := strings.Cut(c.spec, " ")
		plain := c.plain
		if plain == "" {
			plain = spec
		}
		if !strings.Contains(plain, "->") {
			plain = "ij,jk->ik"
		}
		out = append(out, opCase{
			name: c.spec, shapes: c.shapes,
			apply: func(in []*Tensor) *Tensor { return Einsum(spec, in...) },
			naive: func(in []array) array { return naiveEinsum(plain, in) },
		})
	}
	return append(out,
		opCase{
			name: "dot", shapes: [][]int{{4}, {4}}, apply: func(in []*Tensor) *Tensor { return in[0].Dot(in[1]) },
			naive: func(in []array) array { return naiveEinsum("i,i->", in) },
		},
		opCase{
			name: "outer", shapes: [][]int{{3}, {4}}, apply: func(in []*Tensor) *Tensor { return in[0].Outer(in[1]) },
			naive: func(in []array) array { return naiveEinsum("i,j->ij", in) },
		})
}

// naiveEinsum walks every combination of letters.
func naiveEinsum(spec string, in []array) array {
	left, right, _ := strings.Cut(spec, "->")
	terms := strings.Split(left, ",")
	var letters []rune
	var sizes []int
	for t, term := range terms {
		for d, r := range []rune(term) {
			if !slices.Contains(letters, r) {
				letters, sizes = append(letters, r), append(sizes, in[t].shape[d])
			}
		}
	}
	pick := func(index []int, term string) []int {
		out := []int{}
		for _, r := range term {
			out = append(out, index[slices.Index(letters, r)])
		}
		return out
	}
	out := newArray(pick(sizes, right)...)
	each(sizes, func(index []int) {
		product := 1.0
		for t, term := range terms {
			product *= in[t].at(pick(index, term)...)
		}
		out.data[out.position(pick(index, right))] += product
	})
	return out
}
