// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/flight"
)

// openLog gives the group its part of this rank's flight recorder. Who the
// members are is known by then.
func (g *Group) openLog() {
	var r *flight.Recorder
	if g.parent != nil && g.parent.log != nil {
		r = g.parent.log.Recorder()
	} else {
		me := g.members[g.rank]
		r = flight.New(flight.Who{Rank: g.rank, WorldSize: g.size, Host: me.Host, PID: me.PID})
	}
	g.log = r.Group(g.name, g.key, g.rank, g.members, g.world, nil)
}

// sited returns the error of a call with the place where this rank made it. A
// backend keeps its errors for later calls, so it is a copy that is filled.
func (g *Group) sited(err error, c *collective.Call) error {
	switch e := err.(type) {
	case *RankError:
		if e.Site == "" && e.Op != "" {
			here := *e
			here.Site = g.log.Site(*c)
			return &here
		}
	case *TimeoutError:
		if e.Site == "" {
			here := *e
			here.Site = g.log.Site(*c)
			return &here
		}
	}
	return err
}
