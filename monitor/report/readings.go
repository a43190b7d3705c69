// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Reading is a number of a job beside the value that people take for healthy.
type Reading struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"` // of the time of the ranks
	Guide string  `json:"guide"`
	State string  `json:"state"` // [Good] or [Look]
	Do    string  `json:"do,omitempty"`
}

// lookWindow is over how many of the last seconds readings and verdicts go.
const lookWindow = 60

// Limits from which the wait for a rank is told: a share of the time of the others.
const slowRankShare = 0.05

// window is the sum of the last records that are of as many ranks as the last one.
type window struct {
	n       int                // ranks
	total   float64            // seconds of all ranks together
	phases  map[string]float64 // seconds of all ranks together
	byRank  map[string][]float64
	late    []float64
	seconds float64
	gc      float64
	hidden  float64
	work    float64     // billions of floating-point operations of products
	most    float64     // and how many the ranks would have done at their peak
	moved   float64     // seconds that the calls of rank 0 would have taken at the best rates of their groups
	calls   float64     // and how many they took
	slow    map[int]int // how many records name the rank
	why     map[int]string
	records int
}

func windowOf(h *history.History) *window {
	if h == nil || len(h.Ranks) == 0 {
		return nil
	}
	n := h.Ranks[len(h.Ranks)-1].NumRanks()
	w := &window{n: n, phases: map[string]float64{}, byRank: map[string][]float64{}, late: make([]float64, n), slow: map[int]int{}, why: map[int]string{}}
	for i := len(h.Ranks) - 1; i >= 0 && w.seconds < lookWindow; i-- {
		r := &h.Ranks[i]
		if r.NumRanks() != n || r.Time < h.Runs[len(h.Runs)-1].Time {
			break
		}
		w.records++
		w.seconds += r.Seconds
		w.total += r.Seconds * float64(n)
		for name, c := range r.Phases {
			if w.byRank[name] == nil {
				w.byRank[name] = make([]float64, n)
			}
			for rank, s := range c {
				w.byRank[name][rank] += s
				w.phases[name] += s
			}
		}
		for rank, s := range r.Late {
			w.late[rank] += s
		}
		for _, s := range r.GC {
			w.gc += s
		}
		for _, s := range r.Hidden {
			w.hidden += s
		}
		w.addWork(r)
		if r.Slow != nil {
			w.slow[r.Slow.Rank]++
			w.why[r.Slow.Rank] = r.Slow.Why
		}
	}
	if w.records == 0 || w.total <= 0 || n == 0 {
		return nil
	}
	return w
}

// addWork adds what the ranks computed and moved.
func (w *window) addWork(r *history.Ranks) {
	for rank := range r.Peak {
		if rank < len(r.GFLOP) && r.Peak[rank] > 0 {
			w.work += r.GFLOP[rank]
			w.most += r.Peak[rank] * r.Seconds
		}
	}
	for _, l := range r.Links {
		if l.Best > 0 {
			w.moved += float64(l.Bytes) / l.Best
			w.calls += l.Seconds
		}
	}
}

// Readings returns what the last minute of a job's ranks says, beside guide values; nil where nothing is known.
func Readings(h *history.History) []Reading {
	w := windowOf(h)
	if w == nil {
		return nil
	}
	share := func(names ...string) (s float64) {
		for _, name := range names {
			s += w.phases[name]
		}
		return s / w.total
	}
	var all []Reading
	add := func(name string, value float64, guide string, ok bool, do string) {
		r := Reading{Name: name, Share: value, Guide: guide, State: Good}
		if !ok {
			r.State, r.Do = Look, do
		}
		all = append(all, r)
	}
	compute := share("forward", "backward", "optimizer")
	add("computing (forward, backward, optimizer)", compute, "above 85 %", compute > 0.85, "look which of the readings below takes the rest")
	if w.most > 0 {
		v := w.work / w.most
		add(fmt.Sprintf("products of the model, %s of the %s that the ranks reach at best", flopRate(w.work/w.seconds), flopRate(w.most/w.seconds)), v, "above 40 %", v > 0.40,
			"look which of the readings below takes time from computing; larger batches and widths make larger products; --profile shows the operations that cost most")
	}
	if w.calls > 0 {
		v := w.moved / w.calls
		add("links of groups, of the best rate that they reached", v, "above 60 %", v > 0.60, "calls wait for ranks that come late, or move little data each: look who is late, or take larger buckets")
	}
	if w.n > 1 {
		v := share("communication")
		add("communication that nothing hides", v, "below 10 %", v < 0.10, "larger batches or --accumulate make fewer exchanges; --hook bf16 sends half the bytes; look at the links with cohort doctor")
		v = share("waiting")
		add("waiting for other ranks", v, "below 5 %", v < 0.05, "look who is late, below: a slow rank, its data, or work that is not shared out evenly")
	}
	v := share("data")
	add("waiting for data", v, "below 2 %", v < 0.02, "more workers of the loader, faster storage, or data that are prepared before")
	v = share("checkpoint")
	add("checkpoints", v, "below 5 %", v < 0.05, "save less often (--save-every)")
	v = share("evaluation")
	add("evaluations", v, "below 10 %", v < 0.10, "evaluate less often (--eval-every)")
	v = w.gc / w.total
	add("stops by the garbage collector", v, "below 1 %", v < 0.01, "the program makes much garbage in a step: look with pprof, or raise GOGC")
	v = share("other")
	add("everything else", v, "below 5 %", v < 0.05, "the program does something between steps: logging, metrics, or copies")
	return all
}

// slowest says which rank the others wait for.
func slowest(h *history.History) Verdict {
	v := Verdict{Question: "Who is slow?", State: Unknown, Answer: "not known", Why: "the history does not say where the time of the ranks went"}
	w := windowOf(h)
	switch {
	case w == nil:
		return v
	case w.n == 1:
		return Verdict{Question: v.Question, State: Good, Answer: "nobody, there is one rank"}
	}
	waits := w.phases["waiting"] / w.total
	v.State, v.Answer = Good, "nobody"
	v.Why = fmt.Sprintf("the ranks wait %.1f %% of their time for each other", 100*waits)
	rank, share := 0, 0.0
	for r, late := range w.late {
		if s := late / (w.seconds * float64(w.n-1)); s > share {
			rank, share = r, s
		}
	}
	why := w.longer(rank)
	named := false
	for r, n := range w.slow { // the ranks' own comparison, which knows more
		if 2*n > w.records {
			rank, why, named = r, w.why[r], true
			share = max(w.late[r]/(w.seconds*float64(w.n-1)), slowRankShare)
		}
	}
	if share < slowRankShare {
		return v
	}
	if own := w.byRank["waiting"]; !named && own != nil && own[rank]/w.seconds > share/2 { // who is late waits itself
		v.State, v.Answer = Look, "nobody in particular"
		v.Why += ", in turns: the work is uneven, or others use the cores or the links"
		return v
	}
	v.State, v.Answer = Look, fmt.Sprintf("rank %d", rank)
	v.Why = fmt.Sprintf("the others wait %.0f %% of their time for it: %s", 100*share, why)
	return v
}

// work are the phases that are a rank's own work, as a person calls them.
var work = []struct{ phase, words string }{
	{"data", "waiting for data"}, {"forward", "in the forward pass"}, {"backward", "in the backward pass"}, {"optimizer", "in the optimizer"},
	{"checkpoint", "in checkpoints"}, {"evaluation", "in evaluations"}, {"other", "beside the phases of a step"},
}

// longer says in which phase a rank spends more than the others: those that are its own work.
func (w *window) longer(rank int) string {
	most, text := 0.0, "it comes late, and spends no more time in any phase than the others"
	for _, p := range work {
		c := w.byRank[p.phase]
		if c == nil {
			continue
		}
		sorted := slices.Clone(c)
		slices.Sort(sorted)
		usual := sorted[(len(sorted)-1)/2]
		if more := c[rank] - usual; more > most && more > 0.001*w.seconds {
			most = more
			text = fmt.Sprintf("it spends %s of its time %s, the others %s", percent(c[rank]/w.seconds), p.words, percent(usual/w.seconds))
		}
	}
	return text
}

// flopRate writes how many billions of floating-point operations are done in a second.
func flopRate(gflops float64) string {
	if gflops >= 1e4 {
		return fmt.Sprintf("%.3g TFLOP/s", gflops/1e3)
	}
	return fmt.Sprintf("%.3g GFLOP/s", gflops)
}

func percent(share float64) string {
	if share < 0.095 {
		return fmt.Sprintf("%.1f %%", 100*share)
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
