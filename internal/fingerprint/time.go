// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Now is the time of this node's clock. Tests shift it: no namespace has a clock of its own.
func Now() time.Time {
	shift, err := envvar.TestClock.DurationOr(0, -100000*time.Hour, 100000*time.Hour)
	if err != nil {
		shift = 0
	}
	return time.Now().Add(shift)
}

// fineOffset is how far clocks may be from each other.
const fineOffset = time.Second

// CompareClocks returns findings about nodes whose clocks differ from those of most. Each
// node has answered with its time between the times asked and got of the node that asked.
func CompareClocks(nodes []Node, answers []time.Time, asked, got time.Time) []Finding {
	if len(nodes) != len(answers) || len(nodes) < 2 {
		return nil
	}
	// An answer may have been given at any time between the two.
	middle := asked.Add(got.Sub(asked) / 2)
	fine := fineOffset + got.Sub(asked)/2
	offsets := make([]time.Duration, len(nodes))
	for i, a := range answers {
		offsets[i] = a.Sub(middle)
	}
	sorted := slices.SortedFunc(slices.Values(offsets), cmp.Compare[time.Duration])
	// Of two clocks that differ nobody knows which is right: the asking node's is expected.
	right := sorted[len(sorted)/2]
	if len(sorted) == 2 {
		right = 0
	}
	var out []Finding
	for i, n := range nodes {
		d := offsets[i] - right
		if d.Abs() <= fine {
			continue
		}
		way := "after"
		if d < 0 {
			way = "before"
		}
		r := RuleOf(Clock, "time")
		out = append(out, Finding{
			Node: n.Name, Section: Clock, Key: "time", Kind: r.Kind, Expected: "the time of the others",
			Found: fmt.Sprintf("%v %s it", d.Abs().Round(100*time.Millisecond), way), Why: r.Why,
			Mend: r.mend("", "", &mending{expected: n.Print, found: n.Print}),
		})
	}
	return out
}
