// SPDX-License-Identifier: Apache-2.0

// Package tracetest checks files in Chrome's trace format, as its public description has it ("Trace Event
// Format"). Tests of packages that write traces use it. It knows the events that Cohort writes: complete
// events (X), counters (C), arrows (s and f) and metadata (M), and refuses others.
//
// Check is a reader of its own: it shares no types with what writes. Beside the members that each event
// must have, it checks what a viewer needs in order to draw them: slices of a track lie within or after
// each other, and both ends of an arrow lie at a slice.
package tracetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Event is an event of a trace. Times are in µs.
type Event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"`
	Dur   float64        `json:"dur"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	ID    int            `json:"id"`
	Bind  string         `json:"bp"`
	Args  map[string]any `json:"args"`
}

// track is where slices are drawn.
type track struct{ pid, tid int }

// arrow is what the ends of an arrow have alike.
type arrow struct {
	cat, name string
	id        int
}

// Check returns the events of a trace, and an error if it breaks a rule.
func Check(text []byte) ([]Event, error) {
	var raw struct {
		Events []map[string]json.RawMessage `json:"traceEvents"`
	}
	var file struct {
		Unit   string  `json:"displayTimeUnit"`
		Events []Event `json:"traceEvents"`
	}
	for _, to := range []any{&raw, &file} {
		if err := json.Unmarshal(text, to); err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
	}
	if file.Unit != "ms" && file.Unit != "ns" {
		return nil, fmt.Errorf("trace: displayTimeUnit is %q, want ms or ns", file.Unit)
	}
	tracks := map[track][]Event{}
	for i, e := range file.Events {
		if err := check(e, raw.Events[i]); err != nil {
			return nil, fmt.Errorf("trace: event %d, %s: %w", i, e.Name, err)
		}
		if e.Phase == "X" {
			at := track{e.PID, e.TID}
			tracks[at] = append(tracks[at], e)
		}
	}
	for at, of := range tracks {
		if err := nested(of); err != nil {
			return nil, fmt.Errorf("trace: process %d, track %d: %w", at.pid, at.tid, err)
		}
	}
	return file.Events, arrows(file.Events, tracks)
}

// check looks at the members of an event.
func check(e Event, has map[string]json.RawMessage) error {
	need := []string{"name", "ph", "pid", "tid", "ts"}
	switch e.Phase {
	case "X":
		need = append(need, "dur")
	case "C", "M":
		need = append(need, "args")
	case "s", "f":
		need = append(need, "id", "cat")
	default:
		return fmt.Errorf("nobody writes the phase %q", e.Phase)
	}
	for _, member := range need {
		if has[member] == nil {
			return fmt.Errorf("the member %q is missing", member)
		}
	}
	if e.TS < 0 || e.Dur < 0 {
		return fmt.Errorf("it is at %v µs for %v µs", e.TS, e.Dur)
	}
	for name, v := range e.Args {
		if _, isNumber := v.(float64); e.Phase == "C" && !isNumber {
			return fmt.Errorf("the counter %q is %v, want a number", name, v)
		}
	}
	if e.Phase == "M" {
		name, _ := e.Args["name"].(string)
		_, sorts := e.Args["sort_index"].(float64)
		if known := slices.Contains([]string{"process_name", "thread_name"}, e.Name); known && name == "" || !known && !sorts {
			return fmt.Errorf("it has the arguments %v", e.Args)
		}
	}
	return nil
}

// rounding is how much times may be off, in µs: they are exact to a nanosecond.
const rounding = 0.002

// nested checks that slices of a track lie within or after each other.
func nested(of []Event) error {
	slices.SortStableFunc(of, func(a, b Event) int { return cmp.Or(cmp.Compare(a.TS, b.TS), cmp.Compare(b.Dur, a.Dur)) })
	var open []Event
	for _, e := range of {
		for len(open) > 0 && open[len(open)-1].TS+open[len(open)-1].Dur <= e.TS+rounding {
			open = open[:len(open)-1]
		}
		if n := len(open); n > 0 && e.TS+e.Dur > open[n-1].TS+open[n-1].Dur+rounding {
			return fmt.Errorf("%s at %v µs for %v µs overlaps with %s at %v µs for %v µs", e.Name, e.TS, e.Dur, open[n-1].Name, open[n-1].TS, open[n-1].Dur)
		}
		open = append(open, e)
	}
	return nil
}

// arrows checks that each arrow has two ends, the second not before the first, at slices.
func arrows(events []Event, tracks map[track][]Event) error {
	begun := map[arrow]Event{}
	for _, e := range events {
		if e.Phase != "s" && e.Phase != "f" {
			continue
		}
		if !slices.ContainsFunc(tracks[track{e.PID, e.TID}], func(s Event) bool { return s.TS <= e.TS+rounding && e.TS <= s.TS+s.Dur+rounding }) {
			return fmt.Errorf("trace: an end of the arrow %d of process %d is at no slice, at %v µs", e.ID, e.PID, e.TS)
		}
		key := arrow{e.Cat, e.Name, e.ID}
		from, ok := begun[key]
		switch {
		case e.Phase == "s" && ok:
			return fmt.Errorf("trace: two arrows have the id %d", e.ID)
		case e.Phase == "s":
			begun[key] = e
		case !ok || e.TS < from.TS || e.Bind != "e":
			return fmt.Errorf("trace: the arrow %d ends at %v µs (bp %q), and began at %v µs", e.ID, e.TS, e.Bind, from.TS)
		default:
			delete(begun, key)
		}
	}
	if len(begun) > 0 {
		return fmt.Errorf("trace: %d arrows have no end", len(begun))
	}
	return nil
}
