// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Bounds of records about ranks and of values.
const (
	maxRankCells = 1 << 18 // numbers in records of ranks, of which there are minRanks at least
	minRanks     = 64
	MaxValues    = 16384 // records of values, of at most MaxNames names
	MaxNames     = 128
)

// Column is a number for each rank, in the order of ranks.
type Column []float64

// MarshalJSON writes the numbers exact to 0.1 ms, where they are seconds. What is not finite is null.
func (c Column) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 8*len(c)+2), '[')
	for i, v := range c {
		if i > 0 {
			text = append(text, ',')
		}
		if Number(v).IsFinite() {
			text = strconv.AppendFloat(text, math.Round(v*1e4)/1e4, 'f', -1, 64)
		} else {
			text = append(text, "null"...)
		}
	}
	return append(text, ']'), nil
}

// Ranks is where the time of all ranks went between two moments. Columns have a number for each rank.
type Ranks struct {
	Step    int     `json:"step"`  // the last
	Steps   int     `json:"steps"` // how many
	Time    Seconds `json:"time"`  // of the end
	Seconds float64 `json:"seconds"`
	// Phases has the seconds by the name of the phase: data, forward, backward, optimizer,
	// communication, waiting, checkpoint, evaluation, other. They add up to Seconds.
	Phases map[string]Column `json:"phases"`
	// Hidden has the seconds of communication that ran beside computation.
	Hidden Column `json:"hidden,omitempty"`
	// For is the rank for which each rank waited most, -1 for none, and ForSeconds how long.
	For        []int  `json:"for,omitempty"`
	ForSeconds Column `json:"for_seconds,omitempty"`
	// Late has for how many seconds all other ranks together waited for the rank.
	Late Column `json:"late,omitempty"`
	// Resident, Tensors and Heap are bytes at the end: of the process, in tensors, in Go's heap.
	Resident []int64 `json:"resident,omitempty"`
	Tensors  []int64 `json:"tensors,omitempty"`
	Heap     []int64 `json:"heap,omitempty"`
	// CPU has the processor seconds of the processes, GC those of stops by the garbage collector.
	CPU Column `json:"cpu,omitempty"`
	GC  Column `json:"gc,omitempty"`
	// GFLOP has how many billions of floating-point operations the products of the ranks were, without
	// those that were done a second time to save memory, which Again has. Peak is how many a rank does
	// in a second at best, as measured; 0 if it is not known.
	GFLOP Column `json:"gflop,omitempty"`
	Again Column `json:"gflop_again,omitempty"`
	Peak  Column `json:"peak_gflops,omitempty"`
	// Links are the calls of rank 0, by group and operation.
	Links []Link `json:"links,omitempty"`
	// Slow is the rank that is slow, by the ranks' own comparison; nil if none is.
	Slow *Slow `json:"slow,omitempty"`
}

// Slow is a rank for which others wait.
type Slow struct {
	Rank  int     `json:"rank"`
	Share float64 `json:"share"` // of their time, that the others wait for it
	Why   string  `json:"why"`   // what it does longer than the others
}

// MaxLinks bounds Ranks.Links.
const MaxLinks = 16

// Link is what the calls of an operation in a group of ranks came to.
type Link struct {
	Group   string  `json:"group"`
	Ranks   int     `json:"ranks"`
	Op      string  `json:"op"`
	Calls   uint64  `json:"calls"`
	Bytes   int64   `json:"bytes"`   // that the rank gave or got
	Seconds float64 `json:"seconds"` // of the calls, with waiting for other ranks
	Best    float64 `json:"best"`    // bytes a second of the fastest of the largest calls so far: the measured rate
}

// mergedLinks adds up the calls of each group and operation.
func mergedLinks(a, b []Link) []Link {
	out := slices.Clone(a)
	for _, l := range b {
		i := slices.IndexFunc(out, func(o Link) bool { return o.Group == l.Group && o.Op == l.Op })
		switch {
		case i >= 0:
			o := &out[i]
			o.Calls, o.Bytes, o.Seconds, o.Best = o.Calls+l.Calls, o.Bytes+l.Bytes, o.Seconds+l.Seconds, l.Best
		case len(out) < MaxLinks:
			out = append(out, l)
		}
	}
	return out
}

// NumRanks returns how many ranks the record is about.
func (r *Ranks) NumRanks() int {
	for _, c := range r.Phases {
		return len(c)
	}
	return 0
}

// check says what cannot be.
func (r *Ranks) check() error {
	n := r.NumRanks()
	if r.Steps < 0 || !(r.Seconds >= 0) {
		return fmt.Errorf("ranks: %d steps in %v s: this cannot be", r.Steps, r.Seconds)
	}
	if len(r.Links) > MaxLinks {
		return fmt.Errorf("ranks: %d groups and operations, want at most %d", len(r.Links), MaxLinks)
	}
	columns := []Column{r.Hidden, r.ForSeconds, r.Late, r.CPU, r.GC, r.GFLOP, r.Again, r.Peak}
	for _, c := range r.Phases {
		columns = append(columns, c)
	}
	for _, c := range columns {
		if c != nil && len(c) != n {
			return fmt.Errorf("ranks: a column has %d numbers, another %d", len(c), n)
		}
	}
	for _, c := range [][]int64{r.Resident, r.Tensors, r.Heap} {
		if c != nil && len(c) != n {
			return fmt.Errorf("ranks: a column has %d numbers, another %d", len(c), n)
		}
	}
	if r.For != nil && len(r.For) != n {
		return fmt.Errorf("ranks: a column has %d numbers, another %d", len(r.For), n)
	}
	for _, peer := range r.For {
		if peer < -1 || peer >= n {
			return fmt.Errorf("ranks: a rank waits for rank %d of %d", peer, n)
		}
	}
	return nil
}

// plus adds columns; one that is nil is zero.
func plus(a, b Column) Column {
	if a == nil || b == nil {
		return slices.Clone(slices.Concat(a, b))
	}
	sum := slices.Clone(a)
	for i := range sum {
		sum[i] += b[i]
	}
	return sum
}

// mergedRanks returns the record of a and then b, which are of as many ranks.
func mergedRanks(a, b Ranks) Ranks {
	out := b
	out.Steps, out.Seconds = a.Steps+b.Steps, a.Seconds+b.Seconds
	out.Phases = map[string]Column{}
	for _, of := range []map[string]Column{a.Phases, b.Phases} {
		for name, c := range of {
			out.Phases[name] = plus(out.Phases[name], c)
		}
	}
	out.Hidden, out.Late, out.CPU, out.GC = plus(a.Hidden, b.Hidden), plus(a.Late, b.Late), plus(a.CPU, b.CPU), plus(a.GC, b.GC)
	out.GFLOP, out.Again, out.Links = plus(a.GFLOP, b.GFLOP), plus(a.Again, b.Again), mergedLinks(a.Links, b.Links)
	if a.For != nil && b.For != nil {
		out.For, out.ForSeconds = slices.Clone(b.For), slices.Clone(b.ForSeconds)
		for i := range out.For {
			switch {
			case a.For[i] == b.For[i]:
				out.ForSeconds[i] += a.ForSeconds[i]
			case a.ForSeconds[i] > b.ForSeconds[i]:
				out.For[i], out.ForSeconds[i] = a.For[i], a.ForSeconds[i]
			}
		}
	}
	if out.Slow == nil {
		out.Slow = a.Slow
	}
	return out
}

// Ranks notes where the time of the ranks went.
func (w *Writer) Ranks(r Ranks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.h.Ranks = append(w.h.Ranks, r)
	most := min(MaxOthers, max(minRanks, maxRankCells/max(1, 16*r.NumRanks())))
	if w.add(r); len(w.h.Ranks) > most {
		w.h.Ranks, w.rewrite = halved(w.h.Ranks), true
	}
}

// halved makes one record of each two neighbours that are of as many ranks.
func halved(records []Ranks) []Ranks {
	out := records[:0]
	for i := 0; i < len(records); i++ {
		if i+1 < len(records) && records[i].NumRanks() == records[i+1].NumRanks() {
			out = append(out, mergedRanks(records[i], records[i+1]))
			i++
		} else {
			out = append(out, records[i])
		}
	}
	return out
}

// Value is a number that the program logs.
type Value struct {
	Step  int     `json:"step"`
	Time  Seconds `json:"time"`
	Name  string  `json:"name"`
	Value Number  `json:"value"`
}

// Value notes a number that the program logs. It says whether the number is kept: those of more than
// MaxNames names are not.
func (w *Writer) Value(v Value) (kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.names == nil {
		w.names = map[string]int{}
		for _, v := range w.h.Values {
			w.names[v.Name]++
		}
	}
	if w.names[v.Name] == 0 && len(w.names) >= MaxNames {
		return false
	}
	w.names[v.Name]++
	w.h.Values = append(w.h.Values, v)
	if w.add(v); len(w.h.Values) <= MaxValues {
		return true
	}
	seen := map[string]int{}
	thinned := w.h.Values[:0]
	for _, v := range w.h.Values { // every second of each name, from the first on
		if seen[v.Name]%2 == 0 {
			thinned = append(thinned, v)
		}
		seen[v.Name]++
	}
	w.h.Values, w.rewrite = thinned, true
	return true
}
