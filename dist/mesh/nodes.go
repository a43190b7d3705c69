// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
)

// ByNode arranges all ranks of g in a mesh of two axes: between has a coordinate for each node
// that the ranks run on ([dist.Group.Nodes]), and within one for each rank of a node. So
// collectives over within stay inside of a node. ByNode(ctx, g, "replicate", "fsdp") shards a
// model inside of each node, and replicates it between the nodes. On one node, within has all
// ranks. With one rank on each node, it has one, and nothing is sharded.
//
// Nodes come in the order of their first ranks, and the ranks of a node in their order in g.
// Where these do not follow each other in g, a rank has another number in the mesh than in g
// ([Mesh.Rank], [Mesh.World]). Nodes with different numbers of ranks make no grid: the error is
// a [*NodesError] on every rank. So is a rank whose node is not known.
func ByNode(ctx context.Context, g *dist.Group, between, within string) (*Mesh, error) {
	nodes, ranks, err := inOrderOfNodes(g.Nodes(), g.Name())
	if err != nil {
		return nil, err
	}
	axes := []Axis{{between, nodes}, {within, g.Size() / nodes}}
	if slices.Equal(ranks, count(g.Size())) {
		return New(ctx, g, axes...)
	}
	return Over(ctx, g, ranks, axes...)
}

// NodeOrder returns the ranks of g in the order of their nodes: nodes come in the order of their
// first ranks, and the ranks of a node in their order in g. If the node of a rank is not known, the
// order is that of g.
func NodeOrder(g *dist.Group) []int {
	nodes := g.Nodes()
	if slices.Contains(nodes, "") {
		return count(g.Size())
	}
	_, ranks := byNode(nodes)
	return slices.Concat(ranks...)
}

// NodesError says that the nodes of a group's ranks make no grid.
type NodesError struct {
	Nodes []string // by rank in the group
	Group string   // the name of the group
}

func (e *NodesError) Error() string {
	if r := slices.Index(e.Nodes, ""); r >= 0 {
		return fmt.Sprintf("mesh: by node: the node of rank %d of group %q is not known: set COHORT_NODE_ID, or give the axes with their sizes to New", r, e.Group)
	}
	names, ranks := byNode(e.Nodes)
	var has []string
	for i, name := range names {
		const most = 8
		if i == most {
			has = append(has, fmt.Sprintf("and %d more nodes", len(names)-most))
			break
		}
		unit := "ranks"
		if len(ranks[i]) == 1 {
			unit = "rank"
		}
		has = append(has, fmt.Sprintf("%q has %d %s from rank %d on", name, len(ranks[i]), unit, ranks[i][0]))
	}
	return fmt.Sprintf("mesh: by node: the nodes of group %q have different numbers of ranks: %s: start as many on each, or give the axes with their sizes to New",
		e.Group, strings.Join(has, ", "))
}

// inOrderOfNodes returns the number of nodes, and the ranks in the order of their nodes.
func inOrderOfNodes(nodes []string, group string) (numNodes int, ranks []int, err error) {
	if len(nodes) == 1 {
		return 1, count(1), nil
	}
	_, of := byNode(nodes)
	unlike := func(r []int) bool { return len(r) != len(of[0]) }
	if slices.Contains(nodes, "") || slices.ContainsFunc(of, unlike) {
		return 0, nil, &NodesError{Nodes: nodes, Group: group}
	}
	return len(of), slices.Concat(of...), nil
}

// byNode returns the nodes in the order of their first ranks, and the ranks of each.
func byNode(nodes []string) (names []string, ranks [][]int) {
	for r, node := range nodes {
		i := slices.Index(names, node)
		if i < 0 {
			i = len(names)
			names, ranks = append(names, node), append(ranks, nil)
		}
		ranks[i] = append(ranks[i], r)
	}
	return names, ranks
}
