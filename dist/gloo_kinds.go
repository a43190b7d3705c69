// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// goKey is where a Go rank of a PyTorch job says in the store that it is one.
func goKey(rank int) string { return "cohort/rank/" + strconv.Itoa(rank) }

// sayGo tells the other Go ranks what this one is. It comes before its addresses,
// for which all ranks wait: who is in the group can ask.
func (j *glooJob) sayGo(ctx context.Context) error {
	j.self = fmt.Appendf(nil, "pid %d on host %s, since %s", os.Getpid(), j.hostname, time.Now().Format(time.RFC3339Nano))
	return j.keys.Set(ctx, goKey(j.rank), j.self)
}

// errTwin is the cause of what ends because two processes have one rank.
var errTwin = errors.New("each process of a job needs a RANK of its own")

// twin returns an error if another Go process has said since that it is this rank. What
// stood there before may be of an earlier start.
func (j *glooJob) twin(ctx context.Context) error {
	v, err := peek(ctx, j.keys, goKey(j.rank))
	if err != nil || v == nil || bytes.Equal(v, j.self) {
		return nil
	}
	return fmt.Errorf("another process came as rank %d, too (%.300q): %w", j.rank, v, errTwin)
}

// PyTorchRanks returns which ranks of the group are PyTorch's, in order: those that
// take part in its collectives and in nothing else that Cohort has. It asks the job's
// store. Groups without PyTorch's wire have none; WithBackend("native") makes such
// ones among the Go ranks of a PyTorch job ([Group.NewGroup]).
func (g *Group) PyTorchRanks(ctx context.Context) ([]int, error) {
	if g.job == nil {
		return nil, nil
	}
	var ranks []int
	for r, world := range g.world {
		if r == g.rank {
			continue
		}
		isGo, err := isSet(ctx, g.job.keys, goKey(world))
		if err != nil {
			return nil, fmt.Errorf("dist: which ranks of group %q are PyTorch's: %w", g.name, err)
		}
		if !isGo {
			ranks = append(ranks, r)
		}
	}
	return ranks, nil
}

// PyTorchVersion returns which PyTorch the other ranks of the job run, as far as is known:
// "1.13", "2.6", or "2" where it is one of 2.2 and later and no more was found out or said
// ([WithPyTorch]). It is empty for groups without PyTorch's wire.
func (g *Group) PyTorchVersion() string {
	if g.job == nil {
		return ""
	}
	return strings.TrimPrefix(g.job.pytorch.String(), "PyTorch ")
}
