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
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// goKey is where a Go rank of a PyTorch job says in the store that it is one.
func goKey(rank int) string { return "cohort/rank/" + strconv.Itoa(rank) }

// errTwin is the cause of what ends because two processes have one rank.
var errTwin = errors.New("each process of a job needs a RANK of its own")

// sayGo tells the other Go ranks what this one is. It comes before its addresses,
// for which all ranks wait: who is in the group can ask. A rank of PyTorch that has
// published its own under this one's number is there before.
func (j *glooJob) sayGo(ctx context.Context) error {
	if set, err := isSet(ctx, j.keys, j.pytorch.firstKey(j.rank)); err != nil {
		return err
	} else if set {
		if goes, err := isSet(ctx, j.keys, goKey(j.rank)); err != nil {
			return err
		} else if !goes {
			err := fmt.Errorf("a process that runs PyTorch came as rank %d before: %w", j.rank, errTwin)
			if j.addr == "" {
				err = fmt.Errorf("%w; or %s is an earlier job's", err, j.meetingPoint())
			}
			return err
		}
	}
	j.self = fmt.Appendf(nil, "pid %d on host %s, since %s", os.Getpid(), j.hostname, time.Now().Format(time.RFC3339Nano))
	before, err := peek(ctx, j.keys, goKey(j.rank))
	for swapped := false; err == nil && !swapped; { // so that of two that come at once one knows of the other
		j.before = before
		before, swapped, err = j.keys.CompareAndSet(ctx, goKey(j.rank), before, j.self)
	}
	return err
}

// ownKey is a part of a store that remembers what this rank has set first.
type ownKey struct {
	store.Store
	value atomic.Pointer[[]byte]
}

func (o *ownKey) Set(ctx context.Context, key string, value []byte) error {
	own := bytes.Clone(value)
	o.value.CompareAndSwap(nil, &own)
	return o.Store.Set(ctx, key, value)
}

// twin returns an error if another process has said since that it is this rank. What stood
// there before may be of an earlier start. Of ranks of PyTorch 1.13 those of another host
// alone show themselves so.
func (j *glooJob) twin(ctx context.Context, published *ownKey) error {
	own, replaced := published.value.Load(), false
	if own != nil { // looked at first: who publishes has said before whether it is Go's
		v, err := peek(ctx, j.keys, j.pytorch.firstKey(j.rank))
		replaced = err == nil && v != nil && !bytes.Equal(v, *own)
	}
	switch v, err := peek(ctx, j.keys, goKey(j.rank)); {
	case err != nil || v == nil:
		return nil
	case !bytes.Equal(v, j.self):
		return fmt.Errorf("another process came as rank %d, too (%.300q): %w", j.rank, v, errTwin)
	case replaced && j.before != nil: // it has said so before this one, and published its own after
		return fmt.Errorf("another process came as rank %d, too (%.300q, or one that runs PyTorch): %w", j.rank, j.before, errTwin)
	case replaced:
		return fmt.Errorf("another process came as rank %d, too, which runs PyTorch: %w", j.rank, errTwin)
	}
	return nil
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
