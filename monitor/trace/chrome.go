// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// The tracks of a rank. Slices of one track lie within or after each other.
const (
	trackSteps = iota + 1
	trackPhases
	trackModules
	trackOps
	trackCalls // and those after it: calls that overlap have tracks of their own
)

// maxArrows bounds the arrows of a collective.
const maxArrows = 16

// record is an event of Chrome's trace format.
type record struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"` // µs
	Dur   *float64       `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	ID    int            `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// chromeWriter writes records; the first error stays.
type chromeWriter struct {
	w     *bufio.Writer
	begin int64 // the earliest moment, in nanoseconds by the clock of rank 0
	first bool
	ids   int
	err   error
}

func (c *chromeWriter) add(r record) {
	if c.err != nil {
		return
	}
	text, err := json.Marshal(r)
	if err != nil {
		c.err = err
		return
	}
	if !c.first {
		_, _ = c.w.WriteString(",\n") // the writer keeps its error
	}
	c.first = false
	_, c.err = c.w.Write(text)
}

// at returns a moment of a rank in µs since the beginning of the trace.
func (c *chromeWriter) at(p *part, d time.Duration) float64 {
	return math.Round(float64(p.Start+p.Offset+d.Nanoseconds()-c.begin)) / 1e3
}

func (c *chromeWriter) slice(p *part, track int, name, cat string, begun, ended time.Duration, args map[string]any) {
	from := c.at(p, begun)
	dur := max(0, math.Round((c.at(p, ended)-from)*1e3)/1e3)
	c.add(record{Name: name, Cat: cat, Phase: "X", TS: from, Dur: &dur, PID: p.Rank, TID: track, Args: args})
}

// writeChrome writes the trace of ranks, of which the first is rank 0.
func writeChrome(w io.Writer, parts []part) error {
	c := &chromeWriter{w: bufio.NewWriterSize(w, 1<<16), first: true, begin: math.MaxInt64}
	for i := range parts {
		p := &parts[i]
		for _, s := range p.Steps {
			c.begin = min(c.begin, p.Start+p.Offset+s.Begun.Nanoseconds())
		}
	}
	_, _ = c.w.WriteString(`{"displayTimeUnit":"ms","traceEvents":[` + "\n") // the writer keeps its error
	tracks := make([][]int, len(parts))
	for i := range parts {
		p := &parts[i]
		tracks[i] = c.rank(p)
		for _, m := range p.Memory {
			c.add(record{Name: "memory", Phase: "C", TS: c.at(p, m.At), PID: p.Rank, Args: map[string]any{"tensors": m.Bytes}})
		}
	}
	c.arrows(parts, tracks)
	_, _ = c.w.WriteString("\n]}\n")
	if c.err != nil {
		return c.err
	}
	return c.w.Flush()
}

// rank writes what a rank did, and returns the tracks of its calls.
func (c *chromeWriter) rank(p *part) (tracks []int) {
	meta := func(name string, track int, value any) {
		key := "name"
		if name == "process_sort_index" {
			key = "sort_index"
		}
		c.add(record{Name: name, Phase: "M", PID: p.Rank, TID: track, Args: map[string]any{key: value}})
	}
	meta("process_name", 0, fmt.Sprintf("rank %d (host %s, pid %d)", p.Rank, p.Host, p.PID))
	meta("process_sort_index", 0, p.Rank)
	for i, name := range []string{"steps", "phases", "modules", "operations"} { // in the order of the tracks
		meta("thread_name", trackSteps+i, name)
	}
	for _, s := range p.Steps {
		c.slice(p, trackSteps, fmt.Sprintf("step %d", s.Step), "step", s.Begun, s.Ended, nil)
	}
	for _, s := range p.Phases {
		c.slice(p, trackPhases, s.Name, "phase", s.Begun, s.Ended, nil)
	}
	for _, m := range p.Modules {
		name, cat := m.Path, "forward"
		if name == "" {
			name = "model"
		}
		if m.Backward {
			cat = "backward"
		}
		c.slice(p, trackModules, name, cat, m.Begun, m.Ended, nil)
	}
	for _, o := range p.Ops {
		args := map[string]any{"module": o.Module, "bytes": o.Bytes}
		if o.FLOPs > 0 {
			args["flops"] = o.FLOPs
		}
		cat := "op"
		if o.Backward {
			cat = "op,backward"
		}
		c.slice(p, trackOps, o.Name, cat, o.Begun, o.Ended, args)
	}
	tracks, used := lanes(p.Calls)
	for lane := range used {
		meta("thread_name", trackCalls+lane, "collectives")
	}
	for i, e := range p.Calls {
		args := map[string]any{"group": e.Group, "seq": e.Seq, "bytes": e.Bytes, "background": e.Background}
		if e.Peer >= 0 {
			args["peer"] = e.Peer
		}
		c.slice(p, tracks[i], e.Name, "collective", e.Span.Begun, e.Span.Ended, args)
	}
	return tracks
}

// lanes gives each call a track on which no other call takes place at the same time.
func lanes(calls []call) (tracks []int, used int) {
	order := make([]int, len(calls))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(calls[a].Span.Begun, calls[b].Span.Begun) })
	tracks = make([]int, len(calls))
	var ends []time.Duration
	for _, i := range order {
		lane := slices.IndexFunc(ends, func(end time.Duration) bool { return end <= calls[i].Span.Begun })
		if lane < 0 {
			lane = len(ends)
			ends = append(ends, 0)
		}
		ends[lane] = calls[i].Span.Ended
		tracks[i] = trackCalls + lane
	}
	return tracks, len(ends)
}

// collective is what ranks know the same call by.
type collective struct{ key, seq uint64 }

// member is the call of one rank.
type member struct{ part, call int }

// arrows draws an arrow from the rank that came last to a collective to the others, which it let go on.
func (c *chromeWriter) arrows(parts []part, tracks [][]int) {
	calls := map[collective][]member{}
	var order []collective
	for i := range parts {
		for j, e := range parts[i].Calls {
			if e.Peer >= 0 {
				continue
			}
			key := collective{e.Key, e.Seq}
			if calls[key] == nil {
				order = append(order, key)
			}
			calls[key] = append(calls[key], member{i, j})
		}
	}
	begun := func(m member) float64 { return c.at(&parts[m.part], parts[m.part].Calls[m.call].Span.Begun) }
	for _, key := range order {
		members := calls[key]
		if len(members) < 2 {
			continue
		}
		last := slices.MaxFunc(members, func(a, b member) int { return cmp.Compare(begun(a), begun(b)) })
		name := parts[last.part].Calls[last.call].Name
		drawn := 0
		for _, m := range members {
			if m == last || drawn == maxArrows {
				continue
			}
			drawn++
			c.ids++
			p := &parts[m.part]
			end := max(c.at(p, p.Calls[m.call].Span.Ended), begun(last))
			c.add(record{Name: name, Cat: "collective", Phase: "s", TS: begun(last), PID: parts[last.part].Rank, TID: tracks[last.part][last.call], ID: c.ids})
			c.add(record{Name: name, Cat: "collective", Phase: "f", Bind: "e", TS: end, PID: p.Rank, TID: tracks[m.part][m.call], ID: c.ids})
		}
	}
}
