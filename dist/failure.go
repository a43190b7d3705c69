// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/event"
)

// Fail tells the other ranks that this rank has failed: their operations in
// this group, and in the groups that were made from it, end with an error that says
// why. Call it before the rank returns with an error, so that the others know the reason. An
// error about another rank's failure is not passed on. [Main] and [Spawn]
// call Fail with the error that the rank's function returns.
func (g *Group) Fail(err error) {
	if err != nil && !backend.IsConsequence(err) {
		g.fail(err)
	}
}

// fail makes this rank's failure known to the members of the group and of all
// that were made from it, and then has it recorded.
func (g *Group) fail(err error) {
	g.spreadFailure(err)
	g.recordFailure(err)
}

func (g *Group) spreadFailure(err error) {
	for _, c := range g.offspring() {
		c.spreadFailure(err)
	}
	g.failAll(err)
}

// failAll fails the group's communicators: that of the host's memory first, which tells the
// other ranks why.
func (g *Group) failAll(err error) {
	g.mu.Lock()
	all := g.communicators()
	g.mu.Unlock()
	for _, c := range all {
		c.Fail(err)
	}
}

// communicators returns what the group has, that of the host's memory first. The group is
// locked, or open.
func (g *Group) communicators() []backend.Communicator {
	var all []backend.Communicator
	if g.comm != nil {
		all = append(all, g.comm)
	}
	for _, kind := range slices.Sorted(maps.Keys(g.comms)) {
		all = append(all, g.comms[kind])
	}
	return all
}

// failOpen ends the group with an error, unless this rank has left it.
func (g *Group) failOpen(err error) {
	g.mu.Lock()
	if g.closed || g.comm == nil {
		g.mu.Unlock()
		return
	}
	g.running++ // so that the backend stays
	g.mu.Unlock()
	g.failAll(err)
	g.mu.Lock()
	if g.running--; g.running == 0 && g.closed {
		g.noneRunning.Broadcast()
	}
	g.mu.Unlock()
}

// sited returns the error of a call with the place where this rank made it, and
// with what the ranks that it names are in the job. A backend keeps its errors for
// later calls, so it is a copy that is filled.
func (g *Group) sited(err error, c *operation.Call) error {
	err = fault.Among(g.members, err)
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

// recordFailure writes the recorder's dump, if this is the group's first
// failure and the environment says where to.
func (g *Group) recordFailure(err error) {
	g.Events().Emit(event.Event{Kind: event.Fault, Text: err.Error()})
	if g.size == 1 {
		return
	}
	g.failedOnce.Do(func() { g.box.Failed(err) })
}
