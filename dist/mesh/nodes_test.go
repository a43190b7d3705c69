// SPDX-License-Identifier: Apache-2.0

package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// TestByNode: ranks of one node are neighbours on the second axis, wherever their numbers are.
func TestByNode(t *testing.T) {
	for _, c := range []struct {
		nodes []int  // by rank
		want  string // the ranks of each node, or part of the error
	}{
		{[]int{0, 0, 0, 0}, "[0 1 2 3]"},
		{[]int{0, 0, 1, 1}, "[0 1] [2 3]"},
		{[]int{7, 7, 7, 2, 2, 2}, "[0 1 2] [3 4 5]"},
		{[]int{0, 1, 0, 1}, "[0 2] [1 3]"},
		{[]int{1, 0, 0, 2, 2, 1}, "[0 5] [1 2] [3 4]"},
		{[]int{0, 1, 2}, "[0] [1] [2]"},
		{[]int{3}, "[0]"},
		{[]int{0, 0, 0, 1}, `"disttest/0" has 3 ranks from rank 0 on, "disttest/1" has 1 rank from rank 3 on: start as many on each`},
	} {
		res := disttest.Run(t, len(c.nodes), func(ctx context.Context, g *dist.Group) error {
			m, err := mesh.ByNode(ctx, g, "replicate", "fsdp")
			if err != nil {
				var e *mesh.NodesError
				if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("error %w, want %q", err, c.want)
				}
				return nil
			}
			defer m.Close()
			shards, err := m.Group("fsdp")
			if err != nil {
				return err
			}
			replicas, err := m.Group("replicate")
			if err != nil {
				return err
			}
			var rows []string
			for row := range slices.Chunk(m.World().Ranks(), m.Shape()[1]) {
				rows = append(rows, fmt.Sprint(row))
			}
			if got := strings.Join(rows, " "); got != c.want || rows[m.Coordinate()[0]] != fmt.Sprint(shards.Ranks()) {
				return fmt.Errorf("the nodes have the ranks %s, this rank's %v, want %s", got, shards.Ranks(), c.want)
			}
			if shards.LocalSize() != shards.Size() || replicas.LocalSize() != 1 {
				return fmt.Errorf("%d of %d shards and %d of %d replicas are on this node", shards.LocalSize(), shards.Size(), replicas.LocalSize(), replicas.Size())
			}
			if err := shards.Barrier(ctx); err != nil {
				return err
			}
			return replicas.Barrier(ctx)
		}, disttest.WithNodes(c.nodes...))
		if err := res.Err(); err != nil {
			t.Errorf("nodes %v: %v", c.nodes, err)
		}
	}
}

func TestUnknownNode(t *testing.T) {
	e := &mesh.NodesError{Nodes: []string{"a", "", "a"}, Group: "world"}
	if want := `the node of rank 1 of group "world" is not known: set COHORT_NODE_ID`; !strings.Contains(e.Error(), want) {
		t.Errorf("error %q, want %q", e, want)
	}
}
