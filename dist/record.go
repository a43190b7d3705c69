// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/diagnosis"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/event"
)

// openLog gives the group its part of this rank's flight recorder. Who the
// members are is known by then.
func (g *Group) openLog() {
	if g.parent != nil {
		g.box = g.parent.box
	}
	if g.box == nil {
		me := g.members[g.rank]
		g.box = diagnosis.NewBlackBox(g.rank, g.size, me.Host, me.PID)
	}
	g.channel = g.box.Stream().Channel(g.name, collective.KeyNumber(g.key), g.world)
	g.log = g.box.Recorder().Group(g.name, g.key, g.rank, g.members, g.world, g.describe)
}

// describe adds to a dump what the group knows of itself.
func (g *Group) describe(d *flightlog.Group) {
	g.mu.Lock()
	d.Transport = g.transport
	b, ok := g.comm.(backend.Timekeeper)
	g.mu.Unlock()
	if !ok {
		return
	}
	for _, s := range b.Skew() {
		if s.Rank >= 0 && s.Rank < len(g.world) {
			d.Skew = append(d.Skew, flightlog.Skew{Rank: g.world[s.Rank], LateNS: int64(s.Late), Share: s.Share, StepNS: int64(s.Step)})
		}
	}
}

// Events returns what happens on this rank: the collectives of all its groups, and what the
// program says of its steps. All groups of a rank have the same.
func (g *Group) Events() *event.Stream { return g.box.Stream() }

// tell has a call that has ended among the events.
func (g *Group) tell(c *operation.Call, at event.Span) {
	if g.channel == nil {
		return
	}
	message := c.Op == operation.Send || c.Op == operation.Recv
	g.channel.Ended(&event.Call{Op: uint8(c.Op), Name: c.Op.String(), Seq: c.Seq, Bytes: g.bytesOf(c), Span: at, Background: c.Background, InCaller: !c.Background, Message: message, Peer: c.Root})
}

// bytesOf returns the size of this rank's data in a call.
func (g *Group) bytesOf(c *operation.Call) int64 {
	n := c.Count
	switch {
	case c.Parts == nil:
	case c.Recvs != nil: // all-to-all
		n = 0
		for _, part := range c.Parts {
			n += part
		}
	case g.rank < len(c.Parts):
		n = c.Parts[g.rank]
	}
	return int64(n) * int64(c.DType.Size())
}

// waitStill waits for work of this goroutine's call.
func (g *Group) waitStill(w *Work) {
	from := g.channel.Now()
	<-w.done
	g.channel.Stood(from, g.channel.Now())
}

// Dump writes what this rank's flight recorder holds, of all groups that the
// rank is in: its last calls with their times, states and call sites. It is a
// JSON object, which package flightlog documents, reads and merges with those
// of other ranks. It may be called at any time, also while calls are under way.
func (g *Group) Dump(w io.Writer) error {
	text, err := json.Marshal(g.box.Dump())
	if err == nil {
		_, err = w.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("dist: dump of group %q on rank %d: %w", g.name, g.rank, err)
	}
	return nil
}
