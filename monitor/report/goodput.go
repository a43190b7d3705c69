// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Goodput is where the time of a run's ranks went, over all of its processes, in seconds of all ranks
// together. Phases have the names that a history has. Work that was lost by restarts is not in Phases.
type Goodput struct {
	Seconds float64            `json:"seconds"` // the sum of Phases
	Phases  map[string]float64 `json:"phases"`
	Hidden  float64            `json:"hidden"` // communication beside computation
	// ByRank has the phases of each rank, in records of as many ranks as the last one; of at most 64 ranks.
	ByRank []map[string]float64 `json:"ranks"`
	// Again are the seconds of steps that were done again, and Stopped those in which nothing ran, as in Time.
	Again   float64 `json:"lost"`
	Stopped float64 `json:"stopped"`
	// GFLOPs is how many billions of floating-point operations the products of the model were in a second,
	// of all ranks together; PeakShare is that as a share of what the ranks reach at best. 0: not known.
	GFLOPs    float64 `json:"gflops,omitempty"`
	PeakShare float64 `json:"peak_share,omitempty"`
	// For says for which rank others waited longest, for what share of their time, and why if it was called
	// slow; nil for nobody.
	For *Late `json:"for,omitempty"`
}

// Late is a rank that others waited for.
type Late struct {
	Rank  int     `json:"rank"`
	Share float64 `json:"share"`
	Why   string  `json:"why,omitempty"`
}

// maxByRank bounds Goodput.ByRank.
const maxByRank = 64

// goodputOf returns the goodput of a run, nil if its history has none.
func goodputOf(h *history.History) *Goodput {
	if len(h.Ranks) == 0 {
		return nil
	}
	n := h.Ranks[len(h.Ranks)-1].NumRanks()
	g := &Goodput{Phases: map[string]float64{}, ByRank: make([]map[string]float64, min(n, maxByRank))}
	byRank := map[string][]float64{} // by phase: of a record with many ranks, a map for each rank is slow
	late, seconds, why := make([]float64, n), 0.0, map[int]string{}
	for i := range h.Ranks {
		r := &h.Ranks[i]
		same := r.NumRanks() == n
		for name, column := range r.Phases {
			sum := 0.0
			for _, v := range column {
				sum += v
			}
			g.Phases[name] += sum
			g.Seconds += sum
			if !same {
				continue
			}
			to := byRank[name]
			if to == nil {
				to = make([]float64, len(g.ByRank))
				byRank[name] = to
			}
			for rank, v := range column[:len(to)] {
				to[rank] += v
			}
		}
		for _, v := range r.Hidden {
			g.Hidden += v
		}
		if !same || len(r.Late) != n {
			continue
		}
		seconds += r.Seconds
		for rank, v := range r.Late {
			late[rank] += v
		}
		if s := r.Slow; s != nil {
			why[s.Rank] = s.Why
		}
	}
	for rank := range g.ByRank {
		g.ByRank[rank] = map[string]float64{}
		for name, of := range byRank {
			g.ByRank[rank][name] = of[rank]
		}
	}
	if n > 1 && seconds > 0 {
		if rank := slices.Index(late, slices.Max(late)); late[rank] > 0 {
			g.For = &Late{Rank: rank, Share: late[rank] / (float64(n-1) * seconds), Why: why[rank]}
		}
	}
	g.addWork(h)
	t := timeOf(h)
	g.Again, g.Stopped = t.Again, t.Idle
	return g
}

// addWork sums up what the ranks have computed.
func (g *Goodput) addWork(h *history.History) {
	var done, seconds, of, most float64
	for i := range h.Ranks {
		r := &h.Ranks[i]
		for rank, v := range r.GFLOP {
			done += v
			if rank < len(r.Peak) && r.Peak[rank] > 0 {
				of, most = of+v, most+r.Peak[rank]*r.Seconds
			}
		}
		if r.GFLOP != nil {
			seconds += r.Seconds
		}
	}
	if seconds > 0 {
		g.GFLOPs = done / seconds
	}
	if most > 0 {
		g.PeakShare = of / most
	}
}

// computing are the phases that move a model forward.
var computing = []string{"forward", "backward", "optimizer"}

// String says where the time went in one line.
func (g *Goodput) String() string {
	if g.Seconds <= 0 {
		return "not measured"
	}
	share := func(names ...string) float64 {
		sum := 0.0
		for _, name := range names {
			sum += g.Phases[name]
		}
		return 100 * sum / g.Seconds
	}
	parts := []string{fmt.Sprintf("compute %.1f %%", share(computing...))}
	for _, name := range []string{"communication", "waiting", "data", "checkpoint", "evaluation", "other"} {
		if s := share(name); s >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f %%", name, s))
		}
	}
	return strings.Join(parts, ", ")
}

// lateShare is from which share of the others' time on a rank is told in the text.
const lateShare = 0.02

// lines are the lines of a text about it, each with its title.
func (g *Goodput) lines() (out [][2]string) {
	out = append(out, [2]string{"ranks' time", g.String()})
	if g.GFLOPs > 0 {
		text := "products of the model: " + flopRate(g.GFLOPs)
		if g.PeakShare > 0 {
			text += fmt.Sprintf(", %.0f %% of what the ranks reach at best", 100*g.PeakShare)
		}
		out = append(out, [2]string{"work", text})
	}
	if f := g.For; f != nil && f.Share >= lateShare {
		text := fmt.Sprintf("rank %d: the others wait %.1f %% of their time for it", f.Rank, 100*f.Share)
		if f.Why != "" {
			text += "; " + f.Why
		}
		out = append(out, [2]string{"late", text})
	}
	return out
}
