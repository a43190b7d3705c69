// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/parallel"
)

// Goodput is where the time of a run went, over all of its processes. It is saved with each
// checkpoint. Phases have the names that a history has: forward, backward, optimizer, data,
// communication, waiting, checkpoint, evaluation, other.
type Goodput struct {
	Starts  int                `json:"starts"`  // of processes
	Seconds float64            `json:"seconds"` // of all ranks together
	Phases  map[string]float64 `json:"phases"`  // likewise; they add up to Seconds
	Hidden  float64            `json:"hidden"`  // likewise: communication beside computation
	// Ranks has the phases of each rank in this process, of at most the first 64.
	Ranks []map[string]float64 `json:"ranks,omitempty"`
}

// maxGoodputRanks bounds Goodput.Ranks.
const maxGoodputRanks = 64

// begin takes a new process into account.
func (g *Goodput) begin(ranks int) {
	g.Starts++
	phases := map[string]float64{}
	for name, v := range g.Phases {
		phases[name] = v
	}
	g.Phases = phases
	g.Ranks = make([]map[string]float64, min(ranks, maxGoodputRanks))
	for r := range g.Ranks {
		g.Ranks[r] = map[string]float64{}
	}
}

// add adds what the ranks have done.
func (g *Goodput) add(times []event.Times, hidden history.Column) {
	for r, t := range times {
		for p, d := range t {
			name, s := event.Phase(p).String(), d.Seconds()
			g.Phases[name] += s
			g.Seconds += s
			if r < len(g.Ranks) {
				g.Ranks[r][name] += s
			}
		}
		g.Hidden += hidden[r]
	}
}

// String says where the time went, in one line: "compute 71.2 %, communication 3.1 %, …".
func (g *Goodput) String() string {
	if g.Seconds <= 0 {
		return "no step was measured"
	}
	share := func(names ...string) float64 {
		sum := 0.0
		for _, name := range names {
			sum += g.Phases[name]
		}
		return 100 * sum / g.Seconds
	}
	parts := []string{fmt.Sprintf("compute %.1f %%", share("forward", "backward", "optimizer"))}
	for _, name := range []string{"communication", "waiting", "data", "checkpoint", "evaluation", "other"} {
		if s := share(name); s >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f %%", name, s))
		}
	}
	return strings.Join(parts, ", ")
}

const (
	// A rank is slow if all others wait for it for slowShare of their time on average, at least twice as
	// long as for any other rank, and so in slowWindows comparisons one after the other, of slowSteps
	// steps and slowSeconds in all: what a busy machine does for a moment is no slow rank.
	slowShare   = 0.08
	slowWindows = 3
	slowSteps   = 12
	slowSeconds = 2
)

// slowWatch names a rank for which the others wait.
type slowWatch struct {
	world *dist.Group
	rank  int     // that was slow in the last windows,
	held  int     // of which there were so many,
	steps int     // with so many steps
	took  float64 // and seconds
	told  map[int]bool
}

func newSlowWatch(world *dist.Group) slowWatch {
	return slowWatch{world: world, rank: -1, told: map[int]bool{}}
}

// look looks at a comparison. It returns a sentence about a rank that was not told of before, and
// says in the record which one is slow.
func (w *slowWatch) look(record *history.Ranks, cuts []event.Cut) (news string) {
	n := len(record.Late)
	if n < 2 || record.Seconds <= 0 || hasMessages(cuts) {
		return ""
	}
	slowest, second := 0, -1
	for r := 1; r < n; r++ {
		switch late := record.Late[r]; {
		case late > record.Late[slowest]:
			slowest, second = r, slowest
		case second < 0 || late > record.Late[second]:
			second = r
		}
	}
	late := record.Late[slowest] / float64(n-1)
	share := late / record.Seconds
	if share < slowShare || second >= 0 && record.Late[slowest] < 2*record.Late[second] {
		w.rank, w.held = -1, 0
		return ""
	}
	if slowest != w.rank {
		w.rank, w.held, w.steps, w.took = slowest, 0, 0, 0
	}
	w.held++
	w.steps += record.Steps
	w.took += record.Seconds
	if w.held < slowWindows || w.steps < slowSteps || w.took < slowSeconds {
		return ""
	}
	why := reason(record, slowest)
	record.Slow = &history.Slow{Rank: slowest, Share: share, Why: why}
	if w.told[slowest] {
		return ""
	}
	w.told[slowest] = true
	per := func(seconds float64) time.Duration {
		return time.Duration(seconds / float64(max(1, record.Steps)) * float64(time.Second))
	}
	s := parallel.Straggler{Member: w.world.Members()[slowest], Wait: per(late), Step: per(record.Seconds)}
	return s.String() + ": " + why
}

// hasMessages reports whether ranks wait for messages, as those of a pipeline do: the last stage of a
// step is waited for in any case.
func hasMessages(cuts []event.Cut) bool {
	return slices.ContainsFunc(cuts, func(c event.Cut) bool {
		return slices.ContainsFunc(c.Samples, event.Sample.IsMessage)
	})
}

// busyShare is the least share of its processor that a rank has, of what the others have, if no
// other program takes it.
const busyShare = 0.8

// reason says what a rank does longer than the others do: than their median.
func reason(record *history.Ranks, rank int) string {
	type doing struct {
		names []string
		text  string
	}
	best, most := "no phase of its steps takes it longer", 0.0
	for _, d := range []doing{
		{[]string{"data"}, "it waits longer for its data"},
		{[]string{"forward", "backward", "optimizer"}, "it computes longer"},
		{[]string{"checkpoint"}, "it takes longer to write checkpoints"},
		{[]string{"evaluation"}, "it takes longer to evaluate"},
		{[]string{"other"}, "it does other things between its steps"},
	} {
		var others []float64
		its := 0.0
		for r := range record.Late {
			sum := 0.0
			for _, name := range d.names {
				sum += record.Phases[name][r]
			}
			if r == rank {
				its = sum
			} else {
				others = append(others, sum)
			}
		}
		if more := its - middle(others); more > most {
			most = more
			best = fmt.Sprintf("%s (%.3g ms a step, the others %.3g ms)", d.text, 1e3*its/float64(max(1, record.Steps)), 1e3*middle(others)/float64(max(1, record.Steps)))
			if d.names[0] == "forward" && starved(record, rank) {
				best += "; it gets less processor time than the others, so another program may use its cores"
			}
		}
	}
	return best
}

// starved reports whether a rank had less processor time than others for each second that it computed.
func starved(record *history.Ranks, rank int) bool {
	rate := func(r int) float64 {
		busy := record.Phases["forward"][r] + record.Phases["backward"][r] + record.Phases["optimizer"][r]
		if busy <= 0 {
			return 0
		}
		return record.CPU[r] / busy
	}
	var others []float64
	for r := range record.CPU {
		if r != rank {
			others = append(others, rate(r))
		}
	}
	return rate(rank) < busyShare*middle(others)
}

// middle is the median, the lower of two.
func middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[(len(v)-1)/2]
}
