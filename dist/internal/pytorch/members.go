// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/store"
)

// goKey is where a Go rank of a PyTorch job says in the store that it is one.
func goKey(rank int) string { return "cohort/rank/" + strconv.Itoa(rank) }

// errTwin is the cause of what ends because two processes have one rank.
var errTwin = errors.New("each process of a job needs a RANK of its own")

// sayGo tells the other Go ranks what this one is. It comes before its addresses,
// for which all ranks wait: who is in the group can ask. A rank of PyTorch that has
// published its own under this one's number is there before.
func (j *job) sayGo(ctx context.Context) error {
	if set, err := meeting.IsSet(ctx, j.keys, j.release.firstKey(j.rank)); err != nil {
		return err
	} else if set {
		if goes, err := meeting.IsSet(ctx, j.keys, goKey(j.rank)); err != nil {
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
	before, err := meeting.Peek(ctx, j.keys, goKey(j.rank))
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
func (j *job) twin(ctx context.Context, published *ownKey) error {
	own, replaced := published.value.Load(), false
	if own != nil { // looked at first: who publishes has said before whether it is Go's
		v, err := meeting.Peek(ctx, j.keys, j.release.firstKey(j.rank))
		replaced = err == nil && v != nil && !bytes.Equal(v, *own)
	}
	switch v, err := meeting.Peek(ctx, j.keys, goKey(j.rank)); {
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
