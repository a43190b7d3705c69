// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the name that a user meant. A user writes a name that does not exist,
// such as a flag, a key or an axis, and the error suggests the name that is most like it. A name
// that is too far from all of them gets no suggestion, because a wrong one misleads.
package nearest

import (
	"slices"
	"strings"
)

// Name returns the name among known that the user likely meant, or "": the only one that begins
// with name, or else the one with the fewest differences.
func Name(name string, known []string) string {
	longer := func(k string) bool { return len(name) > 4 && strings.HasPrefix(k, strings.ToLower(name)) }
	if i := slices.IndexFunc(known, longer); i >= 0 && !slices.ContainsFunc(known[i+1:], longer) {
		return known[i]
	}
	best, bestDist := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), k); d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

// distance returns how many letters to insert, delete or replace to turn one name into
// the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diag
			if a[i] != b[j] {
				d = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
