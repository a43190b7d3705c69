// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCauseFirst: the report begins with the failure that does not follow from
// another one.
func TestCauseFirst(t *testing.T) {
	const lost3 = `dist: init rank %d of 4: rank 0 (host h, pid 100) failed: environment variable COHORT_INTERFACE is "eth77": want`
	for name, tc := range map[string]struct {
		tails [][]string // by rank, which is the order in which they ended too
		ranks []int
		want  []int
	}{
		"the culprit ends last": {
			ranks: []int{3, 1, 0},
			tails: [][]string{{fmt.Sprintf(lost3, 3)}, {"some log", fmt.Sprintf(lost3, 1)}, {`dist: init rank 0 of 4: environment variable COHORT_INTERFACE is "eth77": want`}},
			want:  []int{0, 3, 1},
		},
		"as it happened": {
			ranks: []int{0, 1}, tails: [][]string{{"panic: boom"}, {`dist: all_reduce 3 of group "world": rank 0 (host h, pid 100) died: process ended with exit code 2`}},
			want: []int{0, 1},
		},
		"without its process": {
			ranks: []int{1, 0}, tails: [][]string{{`dist: init rank 1 of 2: rank 0 failed: store: get: the connection to the store is lost`}, nil},
			want: []int{0, 1},
		},
		"of PyTorch's, whose process nobody knows": {
			ranks: []int{1, 0}, tails: [][]string{{`dist: all_reduce 2 of group "world": rank 0 (host h) failed: its connection has ended`}, nil},
			want: []int{0, 1},
		},
		"in a group of some": {
			ranks: []int{3, 2}, tails: [][]string{{`dist: barrier 1 of group "evens": rank 1 of "evens" (rank 2 of the job, host h, pid 102) has left the group`}, {"no space left"}},
			want: []int{2, 3},
		},
		"missed": {
			ranks: []int{0, 2, 1}, tails: [][]string{{`dist: barrier 1 of group "world": timed out (the group's limit of 1s) while waiting for rank 1 (host h, pid 101), rank 2 (host h, pid 102)`},
				{`dist: barrier 1 of group "world": timed out waiting for rank 1 (host h, pid 101)`}, {"gave up"}},
			want: []int{1, 0, 2},
		},
		"agents that lost a peer": {
			ranks: []int{1, 2, 3, 0}, tails: [][]string{{"rpc: shutdown of table: rpc: cohort.rpc.meet at trainer (rank 0): connection lost: the peer closed it"},
				{"rpc: table.Read at trainer (rank 0): unreachable: connection refused"}, {"rpc: shutdown of d: trainer (rank 0) has gone without a Shutdown: rpc: closed"}, {"no space left"}},
			want: []int{0, 1, 2, 3},
		},
		"a peer that answers with an error": {
			ranks: []int{1, 0}, tails: [][]string{{"rpc: table.Read at trainer (rank 0): row 7: no such row"}, {"no space left"}},
			want: []int{1, 0},
		},
		"each blames the other": {
			ranks: []int{1, 0}, tails: [][]string{{"dist: rank 0 (host h, pid 100) failed: x"}, {"dist: rank 1 (host h, pid 101) failed: y"}},
			want: []int{1, 0},
		},
		"words about itself, and about nobody here": {
			ranks: []int{1, 0}, tails: [][]string{{"rank 1 (host h, pid 101) failed: x", "rank 7 (host h, pid 107) failed: x"}, {"exit"}},
			want: []int{1, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(0, 0)
			var failures []Failure
			for i, r := range tc.ranks {
				failures = append(failures, Failure{Rank: r, PID: 100 + r, Code: 1, Tail: tc.tails[i], Time: start.Add(time.Duration(i) * time.Millisecond)})
			}
			failures = append(failures, Failure{Rank: 9, PID: 109, Stopped: true, Time: start.Add(time.Second)})
			causeFirst(failures)
			var got []int
			for _, f := range failures {
				got = append(got, f.Rank)
			}
			if !slices.Equal(got, append(tc.want, 9)) {
				t.Errorf("the order is %v, want %v", got, tc.want)
			}
			var b strings.Builder
			(&Error{Program: "p", NumRanks: 4, Failures: failures}).Report(&b)
			if want := fmt.Sprintf("failed: rank %d exited", tc.want[0]); !strings.Contains(b.String(), want) || strings.Contains(b.String(), " -") {
				t.Errorf("the report is\n%s", b.String())
			}
			if moved := tc.want[0] != tc.ranks[0]; moved != strings.Contains(b.String(), "ms earlier") || moved != strings.Contains(b.String(), "likely cause") {
				t.Errorf("the report does not say who ended earlier:\n%s", b.String())
			}
		})
	}
}
