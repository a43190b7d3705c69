// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Finding is a difference of a node.
type Finding struct {
	Node     string `json:"node,omitempty"`
	Section  string `json:"section"`
	Key      string `json:"key"`
	Kind     Kind   `json:"kind"`
	Expected string `json:"expected"` // "" if the key should not be there
	Found    string `json:"found"`    // "" if the key is missing
	Unit     string `json:"unit,omitempty"`
	Why      string `json:"why"`
	Mend     string `json:"mend,omitempty"` // a command, or a sentence where there is none
}

// What names the key in messages.
func (f *Finding) What() string { return f.Section + "." + f.Key }

// Diff compares a fingerprint with what is expected. It returns findings of the kinds must
// and warn, the musts first, else in the order of sections and keys.
func Diff(expected, found *Fingerprint) []Finding {
	var out []Finding
	for _, section := range Sections() {
		for _, key := range union(expected.sections[section], found.sections[section]) {
			e, f := expected.sections[section][key], found.sections[section][key]
			r := RuleOf(section, key)
			// A section that one side lacks altogether was not asked for there.
			missing := e == "" || f == ""
			if e == f || r.Kind == Told || missing && (!r.whole || section == Packages && (!expected.Has(section) || !found.Has(section))) {
				continue
			}
			said, got := e, f
			if !missing {
				var differs bool
				if differs, said, got = r.differ(e, f); !differs {
					continue
				}
			}
			finding := Finding{Section: section, Key: key, Kind: r.Kind, Expected: said, Found: got, Unit: r.Unit, Why: r.Why}
			if section == Program && found.Get(Program, "kind") == "other" {
				finding.Kind = Warn // a shell or a runner: the program is another one
			}
			if r.mend != nil {
				finding.Mend = r.mend(e, f, &mending{key: key, expected: expected, found: found})
			}
			out = append(out, finding)
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		switch {
		case a.Kind == b.Kind:
			return 0
		case a.Kind == Must:
			return -1
		}
		return 1
	})
	return out
}

// Verify compares a fingerprint with a file: only in the sections that the file has.
func Verify(expected, found *Fingerprint) []Finding {
	return slices.DeleteFunc(Diff(expected, found), func(f Finding) bool { return !expected.Has(f.Section) })
}

func union(a, b map[string]string) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// differ compares two values that are there and not equal. It returns what to show of them.
func (r *Rule) differ(e, f string) (differs bool, expected, found string) {
	switch r.compare {
	case atLeast, atMost:
		x, okX := amount(e)
		y, okY := amount(f)
		if !okX || !okY {
			return true, e, f
		}
		if r.compare == atMost {
			return y > max(x, r.fine), e, f
		}
		return y < x*(1-r.slack), e, f
	case list:
		have, want := strings.Fields(f), strings.Fields(e)
		var lacks, more []string
		for _, w := range want {
			if !slices.Contains(have, w) {
				lacks = append(lacks, w)
			}
		}
		for _, h := range have {
			if !slices.Contains(want, h) {
				more = append(more, h)
			}
		}
		if len(lacks)+len(more) == 0 {
			return false, "", ""
		}
		return true, some("with", lacks, "without", more), some("without", lacks, "with", more)
	}
	return true, e, f
}

// better says whether a value is better than another, if both are as frequent.
func (r *Rule) better(a, b string) bool {
	if r.good != "" && a != b {
		return a == r.good
	}
	x, okX := amount(a)
	y, okY := amount(b)
	return okX && okY && (r.compare == atLeast && x > y || r.compare == atMost && x < y)
}

// some says which words are there and which are not.
func some(first string, a []string, second string, b []string) string {
	var parts []string
	if len(a) > 0 {
		parts = append(parts, first+" "+strings.Join(a, " "))
	}
	if len(b) > 0 {
		parts = append(parts, second+" "+strings.Join(b, " "))
	}
	return strings.Join(parts, ", ")
}

// unlimited is the value of a limit that is none.
const unlimited = "unlimited"

// amount reads a number, or unlimited.
func amount(text string) (float64, bool) {
	if text == unlimited {
		return 1e300, true
	}
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil && x >= 0
}

// Node is a node of a job and its fingerprint.
type Node struct {
	Name  string
	Print *Fingerprint
}

// Expected returns the fingerprint of what most nodes have: for each key the value that most
// of them have. Of equally frequent values it is the better one, else that of the earlier node.
func Expected(nodes []Node) *Fingerprint {
	out := &Fingerprint{}
	for _, section := range Sections() {
		all := map[string]string{}
		for _, n := range nodes {
			maps.Copy(all, n.Print.sections[section])
		}
		for key := range all {
			count, best := map[string]int{}, ""
			for _, n := range nodes {
				count[n.Print.sections[section][key]]++
			}
			r := RuleOf(section, key)
			most := 0
			for _, n := range nodes {
				v := n.Print.sections[section][key]
				if v == "" && !r.whole {
					continue
				}
				if count[v] > most || count[v] == most && r.better(v, best) {
					best, most = v, count[v]
				}
			}
			out.Set(section, key, best)
		}
	}
	return out
}

// Compare compares the nodes of a job with what most of them have, node by node. Nodes may run
// programs of other names: a program is compared with those of the same name.
func Compare(nodes []Node) []Finding {
	if len(nodes) < 2 {
		return nil
	}
	expected := Expected(nodes)
	programs := map[string][]Node{}
	for _, n := range nodes {
		name := n.Print.Get(Program, "name")
		programs[name] = append(programs[name], n)
	}
	var out []Finding
	for _, n := range nodes {
		mine := expected
		if same := programs[n.Print.Get(Program, "name")]; len(programs) > 1 {
			mine = &Fingerprint{sections: maps.Clone(expected.sections)}
			mine.sections[Program] = Expected(same).sections[Program]
		}
		for _, f := range Diff(mine, n.Print) {
			f.Node = n.Name
			out = append(out, f)
		}
	}
	return out
}

// Stops reports whether a finding stops a job.
func Stops(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Kind == Must })
}
