// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"
)

// Level says how grave a finding is.
type Level string

// The levels, the gravest first.
const (
	Problem Level = "problem" // jobs fail or hang
	Warning Level = "warning" // jobs are slower, or fail later
)

// Finding is something that should be mended.
type Finding struct {
	Check string `json:"check"` // name of the check or trouble
	Level Level  `json:"level"`
	// Hosts are the hosts at fault, by the names that the user gave; none if there is one
	// host only.
	Hosts []string `json:"hosts,omitempty"`
	What  string   `json:"what"` // what was found, where
	Why   string   `json:"why"`  // why it matters
	Mend  string   `json:"mend"` // a command, or a sentence where there is none
	// Lines are lines of a run's files that show it.
	Lines []string `json:"lines,omitempty"`
}

// sortFindings puts problems before warnings, and keeps the order within each.
func sortFindings(all []Finding) {
	slices.SortStableFunc(all, func(a, b Finding) int {
		if a.Level == b.Level {
			return 0
		}
		if a.Level == Problem {
			return -1
		}
		return 1
	})
}

// fold joins findings that differ only in their hosts: a fault of all hosts is told once.
func fold(all []Finding) (out []Finding) {
	for _, f := range all {
		i := slices.IndexFunc(out, func(o Finding) bool {
			return o.Check == f.Check && o.Level == f.Level && o.What == f.What && o.Mend == f.Mend
		})
		if i < 0 {
			out = append(out, f)
			continue
		}
		for _, h := range f.Hosts {
			if !slices.Contains(out[i].Hosts, h) {
				out[i].Hosts = append(out[i].Hosts, h)
			}
		}
	}
	return out
}

// named lists names for a sentence, at most eight of them.
func named(names []string) string {
	const most = 8
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
