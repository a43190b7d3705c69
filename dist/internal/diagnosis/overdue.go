// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
)

// A rank that hangs keeps the others waiting until the group's limit, which is
// long. So the first of the ranks that wait writes which rank it waits for, and where that
// rank's program is. It does so when a call has taken overdueSteps times as long as a step,
// and overdueAfter at least, once for each call. The least time doubles after each report: a
// rank that evaluates or writes a checkpoint while the others wait does so again.
const (
	overdueSteps = 10
	overdueAfter = 10 * time.Second
	// overdueAsks is in how large groups all are asked who has come, overdueTold of how
	// many that have not it is said where they are.
	overdueAsks = 256
	overdueTold = 3
)

// overdue is what the watchdog of a rank knows of calls that take too long.
type overdue struct {
	to    io.Writer     // nil says nothing
	floor time.Duration // as overdueAfter
	told  uint64        // the call of which it has been said
}

// sayOverdue says whom this rank waits for, if that takes too long.
func (w *Watchdog) sayOverdue() {
	o := &w.overdue
	mine := w.log.Doing()
	if o.to == nil || mine.State != fault.DoingUnderWay || mine.ID == o.told || mine.Call.Seq == 0 || mine.For < o.floor {
		return
	}
	g, ok := w.find(mine.Key)
	if !ok || g.Size() > overdueAsks {
		return
	}
	step := g.UsualStep()
	if mine.For < overdueSteps*step {
		return
	}
	comm := g.Asker()
	if comm == nil {
		return
	}
	o.told = mine.ID
	missing, first := notCome(g, &mine, comm, w.stop)
	if !first || len(missing) == 0 || w.log.Doing().ID != mine.ID {
		return
	}
	o.floor *= 2
	_, _ = io.WriteString(o.to, overdueText(g, &mine, step, missing, comm, w.stop))
}

// notCome asks who has not made its part of a call of this rank. first is that no rank before
// this one waits in it too, which would say so.
func notCome(g Group, mine *fault.Doing, comm backend.Asker, stop <-chan struct{}) (missing []int, first bool) {
	came := func(peer int) bool {
		d := comm.Ask(peer, stop)
		return d.State != fault.DoingUnknown && madeBy(&mine.Call, d.Called, d.Sent, d.Received)
	}
	message := mine.Call.Op == operation.Send || mine.Call.Op == operation.Recv
	for peer := range g.Rank() {
		if !message && came(peer) {
			return nil, false
		}
	}
	late := make([]bool, g.Size())
	var all sync.WaitGroup
	for peer := range g.Size() {
		if peer != g.Rank() && (!message || peer == mine.Call.Root) {
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
func overdueText(g Group, mine *fault.Doing, step time.Duration, missing []int, comm backend.Asker, stop <-chan struct{}) string {
	var b strings.Builder
	world := make([]int, len(missing))
	for i, peer := range missing {
		world[i] = g.World()[peer]
	}
	fmt.Fprintf(&b, "cohort: rank %d has been waiting for %s for %v, in %v, number %d of group %q", g.World()[g.Rank()], backend.RanksText(world), mine.For.Round(time.Second), mine.Call, mine.Call.Seq, g.Name())
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
		fmt.Fprintf(&b, "cohort: %v: ", g.Members()[peer])
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

// SetFloor sets how long a call takes at least before it is told of: for tests, which wait
// less.
func (w *Watchdog) SetFloor(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overdue.floor = d
}
