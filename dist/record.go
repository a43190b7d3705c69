// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/diagnosis"
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
