// SPDX-License-Identifier: Apache-2.0

package collective

// Topology is where the ranks of a group are.
type Topology struct {
	// Node is the number of each rank's node: ranks of equal numbers share
	// memory, ranks of different ones talk over the network. Its length is the
	// number of ranks. Ranks that do not share memory have numbers of their own.
	Node []int
}

// OneNode is n ranks that share memory.
func OneNode(n int) Topology { return Topology{Node: make([]int, n)} }

// Apart is n ranks none of which share memory.
func Apart(n int) Topology {
	t := OneNode(n)
	for r := range t.Node {
		t.Node[r] = r
	}
	return t
}

// NumRanks returns the number of ranks.
func (t Topology) NumRanks() int { return len(t.Node) }

// Options are what a group's user may ask of its algorithms.
type Options struct {
	// Deterministic makes reductions go in the order of ranks, so that sums
	// have the same bits on every transport, topology and size.
	Deterministic bool
}
