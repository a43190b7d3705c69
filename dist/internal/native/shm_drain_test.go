// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
)

// slowSpace is one in which a rank is long at what it reaches: as long as reached
// takes.
type slowSpace struct {
	space
	reached func()
	at      atomic.Bool
}

func (s *slowSpace) reach(ctx context.Context, peer int, c *operation.Call, at location, out bool, offset, size int) ([]byte, error) {
	s.at.Store(true)
	s.reached()
	data, err := s.space.reach(ctx, peer, c, at, out, offset, size)
	s.at.Store(false)
	return data, err
}

func sharedData(size int) collective.Data {
	return collective.Data{Buffer: mem.Buffer{Data: make([]byte, size)}, DType: operation.Uint8, NumElems: size}
}

// TestNobodyTouchesWhatAFailedCallHadLent ends a rank's call while another rank
// is at its memory: it returns when that one is no longer.
func TestNobodyTouchesWhatAFailedCallHadLent(t *testing.T) {
	const size = 1 << 20
	for name, ops := range map[string][2]operation.Op{
		"all-reduce": {operation.AllReduce, operation.AllReduce},
		"broadcast":  {operation.Broadcast, operation.Broadcast},
		"message":    {operation.Send, operation.Recv},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ranks := NewGoRanks(Config{Group: "test", Members: members(2), Timeout: time.Minute}, GoRanksOptions{})
				ctx, cancel := context.WithCancel(t.Context())
				slow := &slowSpace{space: ranks[1].space, reached: func() {
					cancel()
					time.Sleep(leaveLimit / 2)
				}}
				ranks[1].space = slow
				run := func(ctx context.Context, rank int) error {
					c := operation.Call{Op: ops[rank], DType: operation.Uint8, Count: size, Seq: 1}
					data := sharedData(size)
					switch c.Op {
					case operation.Send:
						c.Root = 1
						return ranks[rank].Send(ctx, c, data)
					case operation.Recv:
						return ranks[rank].Recv(ctx, c, data)
					}
					return ranks[rank].Collective(ctx, c, data, data)
				}
				var wg sync.WaitGroup
				wg.Go(func() { _ = run(t.Context(), 1) })
				start := time.Now()
				if err := run(ctx, 0); err == nil {
					t.Error("a call whose context ended gave no error")
				}
				if slow.at.Load() {
					t.Errorf("rank 0 returned after %v, with rank 1 at its memory", time.Since(start))
				}
				wg.Wait()
			})
		})
	}
}

// TestLateRankTouchesNothing has a rank come to a call that has failed for
// another one, just when that one has looked who has come.
func TestLateRankTouchesNothing(t *testing.T) {
	ranks := NewGoRanks(Config{Group: "test", Members: members(2), Timeout: time.Minute}, GoRanksOptions{})
	ranks[1].space = &slowSpace{space: ranks[1].space, reached: func() { t.Error("a late rank reached for what a failed call had lent") }}
	c := operation.Call{Op: operation.AllReduce, DType: operation.Uint8, Count: 1 << 20, Seq: 1}
	data := sharedData(1 << 20)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := ranks[0].Collective(ctx, c, data, data); err == nil {
		t.Error("a call of one rank of two gave no error")
	}
	// As Collective does after it has looked whether the group is usable.
	m := &ranks[1].running
	*m = shmCall{s: ranks[1], ctx: t.Context(), call: c, me: 1, inData: data, outData: data, in: data.Bytes(), out: data.Bytes()}
	m.c = &m.call
	if err := m.perform(); err == nil {
		t.Error("a late rank's call gave no error")
	}
}

// TestNobodyWaitsForTheGone does not wait for ranks that have died in a call.
func TestNobodyWaitsForTheGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ranks := NewGoRanks(Config{Group: "test", Members: members(2), Timeout: time.Minute}, GoRanksOptions{})
		c := operation.Call{Op: operation.AllReduce, DType: operation.Uint8, Count: 1 << 20, Seq: 1}
		data := sharedData(1 << 20)
		ranks[1].post(&c, entryFlag, 1)
		ranks[1].call(1, 1).record.fill(&c)
		ranks[1].call(1, 1).record.ways = outLent
		start := time.Now()
		var death sync.WaitGroup
		death.Go(func() {
			time.Sleep(nap)
			ranks[0].Died(1)
		})
		if err := ranks[0].Collective(t.Context(), c, data, data); err == nil {
			t.Error("a call with a dead rank gave no error")
		}
		if took := time.Since(start); took > 2*nap {
			t.Errorf("the survivor waited for %v", took)
		}
		death.Wait()
	})
}
