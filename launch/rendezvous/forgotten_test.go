// SPDX-License-Identifier: Apache-2.0

package rendezvous

import "testing"

// TestForgotten: only where every node that came is node 0 was --node-rank
// likely forgotten.
func TestForgotten(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		want  bool
	}{{[]int{0}, true}, {[]int{1}, false}, {[]int{0, 2}, false}, {[]int{-1}, false}, {nil, false}} {
		var nodes []Node
		for _, r := range c.ranks {
			nodes = append(nodes, Node{Rank: r})
		}
		if got := forgotten(nodes) != ""; got != c.want {
			t.Errorf("of node ranks %v: %v, want %v", c.ranks, got, c.want)
		}
	}
}
