// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	ops "github.com/cohort-ml/cohort/internal/trace"
	"github.com/cohort-ml/cohort/tensor"
)

// pings is how many messages go to and fro to compare the clocks of two ranks.
const pings = 8

// part is what one rank has done. Times are since Start.
type part struct {
	Rank    int
	Host    string
	PID     int
	Start   int64 // by the clock of the rank's host, in nanoseconds since 1970
	Offset  int64 // that is to be added to that clock: it is then the clock of rank 0
	FLOPs   float64
	Bytes   float64
	Lost    int
	Steps   []stepSpan
	Ops     []ops.Op
	Modules []ops.Module
	Memory  []ops.Memory
	Phases  []phase
	Calls   []call
}

// phase is a time in a phase of a step.
type phase struct {
	Name         string
	Begun, Ended time.Duration
}

// call is a call of a group.
type call struct {
	Name       string
	Group      string
	Key, Seq   uint64
	Peer       int // of a message, -1 for none
	Bytes      int64
	Background bool
	Span       event.Span
}

// part returns what this rank has done.
func (p *Profiler) part() part {
	me := p.group.Members()[p.group.Rank()]
	list, lost := p.recorder.Ops()
	out := part{
		Rank: p.group.Rank(), Host: me.Host, PID: me.PID, Start: p.group.Events().Start().UnixNano(), FLOPs: p.o.FLOPs, Bytes: p.o.Bytes,
		Lost: lost + int(p.reader.Lost()), Steps: p.steps, Ops: list, Modules: p.recorder.Modules(), Memory: p.recorder.Samples(),
	}
	begun := p.steps[0].Begun
	for _, e := range p.events {
		switch {
		case e.Kind == event.PhaseEnded && e.Span.Ended > begun:
			out.Phases = append(out.Phases, phase{e.Name, max(begun, e.Span.Begun), e.Span.Ended})
		case e.Kind == event.Collective && e.Span.Begun >= begun: // else it is of a step before
			out.Calls = append(out.Calls, call{e.Name, e.Group, e.Key, e.Seq, e.Peer, e.Bytes, e.Background, e.Span})
		}
	}
	return out
}

// gather returns the parts of all ranks on rank 0, with the offsets of their clocks.
func gather(ctx context.Context, g *dist.Group, mine part) ([]part, error) {
	if g.Rank() != 0 {
		if err := answer(ctx, g); err != nil {
			return nil, fmt.Errorf("compare clocks with rank 0: %w", err)
		}
		if err := dist.SendObject(ctx, g, mine, 0); err != nil {
			return nil, fmt.Errorf("send the trace to rank 0: %w", err)
		}
		return nil, nil
	}
	parts := []part{mine}
	for r := 1; r < g.Size(); r++ {
		offset, err := compare(ctx, g, r)
		if err != nil {
			return nil, fmt.Errorf("compare clocks with rank %d: %w", r, err)
		}
		of, err := dist.RecvObject[part](ctx, g, r)
		if err != nil {
			return nil, fmt.Errorf("get the trace of rank %d: %w", r, err)
		}
		of.Rank, of.Offset = r, offset.Nanoseconds()
		parts = append(parts, of)
	}
	return parts, nil
}

// now is the clock of this host; a variable for tests.
var now = func(int) int64 { return time.Now().UnixNano() }

// compare returns what is to be added to the clock of a rank so that it is that of rank 0, which calls it.
// The message that was fastest to and fro says it best: the rank's answer is from the middle of that time.
// A difference that is smaller than half of the time is none: both may have the same clock.
func compare(ctx context.Context, g *dist.Group, rank int) (time.Duration, error) {
	var offset, exact time.Duration
	clock := tensor.FromInt64([]int64{0})
	for i := range pings {
		sent := now(0)
		if err := g.Send(ctx, tensor.FromInt64([]int64{sent}), rank); err != nil {
			return 0, err
		}
		if err := g.Recv(ctx, clock, rank); err != nil {
			return 0, err
		}
		half := time.Duration(now(0)-sent) / 2
		if i == 0 || half < exact {
			exact, offset = half, time.Duration(sent-clock.Int64s()[0])+half
		}
	}
	if offset.Abs() <= exact {
		return 0, nil
	}
	return offset, nil
}

// answer tells rank 0 the clock of this rank.
func answer(ctx context.Context, g *dist.Group) error {
	asked := tensor.FromInt64([]int64{0})
	for range pings {
		if err := g.Recv(ctx, asked, 0); err != nil {
			return err
		}
		if err := g.Send(ctx, tensor.FromInt64([]int64{now(g.Rank())}), 0); err != nil {
			return err
		}
	}
	return nil
}
