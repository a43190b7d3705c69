// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
)

// A rank that hangs keeps the others waiting for as long as the group's limit, which is
// long. So the first of those that wait says for whom, and where that one's program is,
// when a call has taken overdueSteps times what a step does, and overdueAfter at least:
// once for each call. Twice as long the next time, for a rank that evaluates or writes a
// checkpoint while the others wait does so again.
const (
	overdueSteps = 10
	overdueAfter = 10 * time.Second
	// overdueAsks is in how large groups all are asked who has come, overdueTold of how
	// many that have not it is said where they are.
	overdueAsks = 256
	overdueTold = 3
)

// overdue is what the guard of a rank knows of calls that take too long.
type overdue struct {
	to    io.Writer     // nil says nothing
	floor time.Duration // as overdueAfter
	told  uint64        // the call of which it has been said
}

func newOverdue(g *Group) overdue {
	if g.host != nil { // a network inside the process, with a time of its own
		return overdue{}
	}
	return overdue{to: os.Stderr, floor: overdueAfter}
}

// sayOverdue says whom this rank waits for, if that takes too long.
func (w *guard) sayOverdue() {
	o := &w.overdue
	mine := w.root.log.Doing()
	if o.to == nil || mine.State != fault.DoingUnderWay || mine.ID == o.told || mine.Call.Seq == 0 || mine.For < o.floor {
		return
	}
	g := w.root.withKey(mine.Key)
	if g == nil || g.size > overdueAsks {
		return
	}
	step := g.usualStep()
	if mine.For < overdueSteps*step {
		return
	}
	g.mu.Lock()
	comm, _ := g.comm.(backend.Asker)
	g.mu.Unlock()
	if comm == nil {
		return
	}
	o.told = mine.ID
	missing, first := g.notCome(&mine, comm, w.stop)
	if !first || len(missing) == 0 || w.root.log.Doing().ID != mine.ID {
		return
	}
	o.floor *= 2
	_, _ = io.WriteString(o.to, g.overdueText(&mine, step, missing, comm, w.stop))
}

// usualStep is what a step takes, as far as is known: one that the program marks, or a
// collective and what is between two of them.
func (g *Group) usualStep() time.Duration {
	for _, s := range g.Skew() {
		return s.Step
	}
	if p := g.howFar(); p.Steps > 0 {
		return p.At / time.Duration(p.Steps)
	}
	return 0
}

// notCome asks who has not made its part of a call of this rank. first is that no rank before
// this one waits in it too, which would say so.
func (g *Group) notCome(mine *Doing, comm backend.Asker, stop <-chan struct{}) (missing []int, first bool) {
	came := func(peer int) bool {
		d := comm.Ask(peer, stop)
		return d.State != fault.DoingUnknown && madeBy(&mine.Call, d.Called, d.Sent, d.Received)
	}
	message := mine.Call.Op == operation.Send || mine.Call.Op == operation.Recv
	for peer := range g.rank {
		if !message && came(peer) {
			return nil, false
		}
	}
	late := make([]bool, g.size)
	var all sync.WaitGroup
	for peer := range g.size {
		if peer != g.rank && (!message || peer == mine.Call.Root) {
			all.Go(func() { late[peer] = !came(peer) })
		}
	}
	all.Wait()
	for peer, l := range late {
		if l {
			missing = append(missing, peer)
		}
	}
	return missing, true
}

// overdueText is what is said of a call that takes too long.
func (g *Group) overdueText(mine *Doing, step time.Duration, missing []int, comm backend.Asker, stop <-chan struct{}) string {
	var b strings.Builder
	world := make([]int, len(missing))
	for i, peer := range missing {
		world[i] = g.world[peer]
	}
	fmt.Fprintf(&b, "cohort: rank %d has been waiting for %s for %v, in %v, number %d of group %q", g.world[g.rank], backend.RanksText(world), mine.For.Round(time.Second), mine.Call, mine.Call.Seq, g.name)
	if mine.Site != "" {
		fmt.Fprintf(&b, ", at %s", mine.Site)
	}
	if step >= time.Millisecond {
		fmt.Fprintf(&b, "; a step took %v", step.Round(time.Millisecond))
	}
	b.WriteString("\n")
	for _, peer := range missing[:min(len(missing), overdueTold)] {
		d := comm.Ask
		if where, ok := comm.(backend.WhereAsker); ok {
			d = where.AskWhere
		}
		there := d(peer, stop)
		fmt.Fprintf(&b, "cohort: %v: ", g.members[peer])
		switch {
		case there.State == fault.DoingUnknown:
			b.WriteString("it does not say where it is\n")
			continue
		case there.At != "":
			fmt.Fprintf(&b, "it is at %s; ", there.At)
		}
		b.WriteString(there.String() + "\n")
		for line := range strings.Lines(there.Stack) {
			b.WriteString("    " + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return b.String()
}
