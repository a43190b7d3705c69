// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Traffic is what a rank has spent on communication since its group was formed.
type Traffic struct {
	// SentBytes is the data that the rank has given to other ranks: what it has sent over
	// connections, and in shared memory what other ranks have read of its data and what it has
	// written into theirs. Only the data of the program counts: no heads of frames, no barriers,
	// no heartbeats. A number is exact when the calls that it counts have ended on all ranks.
	SentBytes int64
	// Waited is for how long the program stood still: in calls, and in [Work.Wait]. A call
	// that ran beside a computation counts only from when the program waited for it.
	Waited time.Duration
}

// Since returns what was spent after an earlier moment.
func (t Traffic) Since(before Traffic) Traffic {
	return Traffic{SentBytes: t.SentBytes - before.SentBytes, Waited: t.Waited - before.Waited}
}

// Traffic returns what this rank has spent in the group, and in the groups that were made from
// it and that it has not left. Groups with PyTorch's wire count no bytes.
func (g *Group) Traffic() Traffic {
	_, waited := g.log.Waited()
	t := Traffic{Waited: time.Duration(waited + g.progress.stood.Load())}
	g.mu.Lock()
	comms := g.communicators()
	g.mu.Unlock()
	for _, c := range comms {
		if m, ok := c.(backend.Meter); ok {
			t.SentBytes += m.Sent()
		}
	}
	for _, c := range g.offspring() {
		of := c.Traffic()
		t.SentBytes += of.SentBytes
		t.Waited += of.Waited
	}
	return t
}

// PredictSent returns how many bytes of data a collective makes this rank give to others, to the
// byte: the [Traffic] that the call will add. It is a pure function of the call and of the group:
// of the number of ranks, where they are, how data moves between them. shared says that the
// tensors of all ranks lie in memory that local ranks share (tensor.NewShared). Sums over three
// and more ranks are cut in other places there than those of private memory.
func (g *Group) PredictSent(c operation.Call, shared bool) (int64, error) {
	if g.size == 1 {
		return 0, nil
	}
	g.mu.Lock()
	comm := g.comm
	g.mu.Unlock()
	m, ok := comm.(backend.Meter)
	if !ok {
		return 0, fmt.Errorf("dist: group %q on rank %d: its transport (%s) counts no bytes, so those of %v cannot be predicted", g.name, g.rank, g.transport, c)
	}
	return m.Sends(&c, shared)
}
