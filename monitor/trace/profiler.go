// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	ops "github.com/cohort-ml/cohort/internal/trace"
	"github.com/cohort-ml/cohort/tensor"
)

// MaxSteps bounds the steps of a trace.
const MaxSteps = 1000

// Options say what is traced. All ranks have the same, but for their rates.
type Options struct {
	From, To int    // the first step and the last, from 1
	Dir      string // where rank 0 writes
	// FLOPs and Bytes are what this rank's threads reach in a second at best: floating-point operations,
	// and bytes of memory. 0 is not known; the table has no share then.
	FLOPs, Bytes float64
}

// ParseSteps reads "100-105", or "100" for one step.
func ParseSteps(text string) (from, to int, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err = strconv.Atoi(first)
	if err == nil {
		to, err = strconv.Atoi(last)
	}
	if err != nil || from < 1 || to < from || to-from >= MaxSteps {
		return 0, 0, fmt.Errorf("the steps to trace are %q, want FROM-TO as in 100-105: at most %d steps, the first is 1", text, MaxSteps)
	}
	return from, to, nil
}

// Profiler traces steps on one rank. The goroutine that does the steps calls it.
type Profiler struct {
	group    *dist.Group
	o        Options
	recorder *ops.Recorder // nil outside of the traced steps
	reader   *event.Reader
	events   []event.Event
	buf      []event.Event
	begun    time.Duration
	steps    []stepSpan
}

// stepSpan is when a step was done.
type stepSpan struct {
	Step         int
	Begun, Ended time.Duration
}

// New returns the profiler of a rank.
func New(group *dist.Group, o Options) *Profiler {
	return &Profiler{group: group, o: o}
}

// Begin says that this goroutine begins a step.
func (p *Profiler) Begin(step int) {
	if p == nil || step < p.o.From || step > p.o.To {
		return
	}
	stream := p.group.Events()
	if p.recorder == nil {
		p.recorder = ops.Start(stream.Start(), func() int64 { now, _ := tensor.MemoryInUse(); return now })
		p.reader, p.buf = stream.Read(false), make([]event.Event, 256)
	}
	p.begun = stream.Now()
}

// Close ends a trace that End has not ended, such as that of a step that failed. Nothing is written.
func (p *Profiler) Close() {
	if p != nil && p.recorder != nil {
		p.recorder.Stop()
		p.recorder = nil
	}
}

// Trace is what rank 0 has written.
type Trace struct {
	File, CostsFile string
	Lost            int // operations and events of all ranks that did not fit
	Costs           []Cost
}

// End says that the step has ended. After the last step, rank 0 gathers the trace of all ranks and writes
// it: it returns what it has written, and nil otherwise. All ranks call it after each step.
func (p *Profiler) End(ctx context.Context, step int) (*Trace, error) {
	if p == nil || p.recorder == nil {
		return nil, nil
	}
	p.steps = append(p.steps, stepSpan{step, p.begun, p.group.Events().Now()})
	for n := p.reader.Next(p.buf); n > 0; n = p.reader.Next(p.buf) {
		p.events = append(p.events, p.buf[:n]...)
	}
	if step < p.o.To {
		return nil, nil
	}
	p.recorder.Stop()
	mine := p.part()
	p.recorder = nil
	parts, err := gather(ctx, p.group, mine)
	p.events, p.steps = nil, nil
	if err != nil || p.group.Rank() != 0 {
		return nil, err
	}
	return p.write(parts)
}

// write writes the files.
func (p *Profiler) write(parts []part) (*Trace, error) {
	name := filepath.Join(p.o.Dir, fmt.Sprintf("profile-%d-%d", p.o.From, p.o.To))
	t := &Trace{File: name + ".json", CostsFile: name + ".costs.json", Costs: costsOf(parts)}
	for _, part := range parts {
		t.Lost += part.Lost
	}
	text, err := json.MarshalIndent(struct {
		Version int    `json:"version"`
		From    int    `json:"from"`
		To      int    `json:"to"`
		Ranks   int    `json:"ranks"`
		Lost    int    `json:"lost"`
		Costs   []Cost `json:"costs"`
	}{1, p.o.From, p.o.To, len(parts), t.Lost, t.Costs}, "", " ")
	if err == nil {
		err = os.WriteFile(t.CostsFile, append(text, '\n'), 0o644)
	}
	if err == nil {
		err = writeFile(t.File, parts)
	}
	if err != nil {
		return nil, &WriteError{fmt.Errorf("the trace of steps %d to %d is not written: %w", p.o.From, p.o.To, err)}
	}
	return t, nil
}

// WriteError says that rank 0 has not written a trace, such as to a full disk. The ranks can go on.
type WriteError struct{ err error }

func (e *WriteError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.err }

// writeFile writes the trace in Chrome's format.
func writeFile(path string, parts []part) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(writeChrome(f, parts), f.Close())
}
