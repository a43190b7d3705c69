// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"slices"
	"strconv"
	"strings"
)

// Span is the ranks from First to Last.
type Span struct{ First, Last int }

// Ranks is a set of ranks, as spans in rising order. As text, in JSON too, it
// is "0-3,7".
type Ranks []Span

// ranksOf makes a set of a list, which it sorts.
func ranksOf(list []int) Ranks {
	slices.Sort(list)
	var out Ranks
	for _, r := range list {
		if n := len(out); n > 0 && r <= out[n-1].Last+1 {
			out[n-1].Last = r
		} else {
			out = append(out, Span{r, r})
		}
	}
	return out
}

// Count returns how many ranks there are.
func (r Ranks) Count() int {
	n := 0
	for _, s := range r {
		n += s.Last - s.First + 1
	}
	return n
}

// Has reports whether a rank is among them.
func (r Ranks) Has(rank int) bool {
	for _, s := range r {
		if s.First <= rank && rank <= s.Last {
			return true
		}
	}
	return false
}

// union returns the ranks of both sets.
func (r Ranks) union(o Ranks) Ranks {
	all := append(slices.Clone(r), o...)
	slices.SortFunc(all, func(a, b Span) int { return a.First - b.First })
	var out Ranks
	for _, s := range all {
		if n := len(out); n > 0 && s.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, s.Last)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// without returns the ranks from 0 to size-1 that are not in the set.
func (r Ranks) without(size int) Ranks {
	var out Ranks
	next := 0
	for _, s := range r {
		if s.First > next {
			out = append(out, Span{next, s.First - 1})
		}
		next = s.Last + 1
	}
	if next < size {
		out = append(out, Span{next, size - 1})
	}
	return out
}

func (r Ranks) String() string {
	var b strings.Builder
	for i, s := range r {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.First))
		if s.Last > s.First {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s.Last))
		}
	}
	return b.String()
}

// MarshalText returns "0-3,7".
func (r Ranks) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// phrase is the set in a sentence: "rank 3", "ranks 0-3, 7", with an end to it.
func (r Ranks) phrase() string {
	const most = 24 // spans
	what, more := "ranks ", ""
	if r.Count() == 1 {
		what = "rank "
	}
	if len(r) > most {
		more = " and " + strconv.Itoa(r[most:].Count()) + " more"
		r = r[:most]
	}
	return what + strings.ReplaceAll(r.String(), ",", ", ") + more
}
