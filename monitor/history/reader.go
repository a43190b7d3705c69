// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Limits of what is read.
const (
	maxFile = 64 << 20 // bytes of a history
	maxLine = 1 << 20  // bytes of a record
)

// History is what a file says of a run.
type History struct {
	Runs        []Run
	Steps       []Step
	Evaluations []Evaluation
	Saved       []Saved
	Notes       []Note
	Lost        []Lost
	Ranks       []Ranks
	Values      []Value
	Samples     []Sample
	End         *End // nil if the run has not ended by itself
}

// ReadDir reads the history of a run's directory. The error wraps [os.ErrNotExist] if the
// run has none.
func ReadDir(dir string) (*History, error) {
	path := filepath.Join(dir, FileName)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer f.Close()
	h, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("history: %s: %w", path, err)
	}
	return h, nil
}

// Read reads a history. A last line without its end is left out, because a run may be killed
// while it writes. Members that are not known are left out; kinds that are not known are an
// error, and so are a version that is not known, a file of more than 64 MiB, and a record of more
// than 1 MiB.
func Read(r io.Reader) (*History, error) {
	h := &History{}
	limited := &io.LimitedReader{R: r, N: maxFile + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d has more than %d bytes", number, maxLine)
		case limited.N == 0:
			return nil, fmt.Errorf("more than %d bytes", maxFile)
		case errors.Is(err, io.EOF):
			if len(h.Runs) == 0 {
				return nil, errors.New("no run has begun in this file")
			}
			return h, nil
		case err != nil:
			return nil, err
		}
		if err := h.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
}

// add takes the record of a line.
func (h *History) add(line []byte) error {
	var head struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return err
	}
	if len(h.Runs) == 0 && head.Kind != "run" {
		return fmt.Errorf("a history begins with a record of the kind run, not %q", head.Kind)
	}
	switch head.Kind {
	case "run":
		return h.addRun(line)
	case "step":
		return h.addStep(line)
	case "eval":
		return addTo(&h.Evaluations, line)
	case "saved":
		return addTo(&h.Saved, line)
	case "note":
		return addTo(&h.Notes, line)
	case "lost":
		return addTo(&h.Lost, line)
	case "ranks":
		if err := addTo(&h.Ranks, line); err != nil {
			return err
		}
		return h.Ranks[len(h.Ranks)-1].check()
	case "value":
		return addTo(&h.Values, line)
	case "sample":
		if err := addTo(&h.Samples, line); err != nil {
			return err
		}
		return h.Samples[len(h.Samples)-1].check()
	case "end":
		h.End = new(End)
		return json.Unmarshal(line, h.End)
	}
	return fmt.Errorf("a record of the kind %q: a newer version of Cohort has written it", head.Kind)
}

func (h *History) addRun(line []byte) error {
	if err := addTo(&h.Runs, line); err != nil {
		return err
	}
	h.End = nil
	if v := h.Runs[len(h.Runs)-1].Version; v != Version {
		return fmt.Errorf("the version of the history is %d, this program knows %d", v, Version)
	}
	return nil
}

func (h *History) addStep(line []byte) error {
	if err := addTo(&h.Steps, line); err != nil {
		return err
	}
	s := h.Steps[len(h.Steps)-1]
	before := 0
	if n := len(h.Steps); n > 1 {
		before = h.Steps[n-2].Step
	}
	if s.Steps < 1 || s.Step <= before || s.Steps > s.Step || s.NonFinite < 0 || s.NonFinite > s.Steps || s.Size < 0 || !(s.Seconds >= 0) {
		return fmt.Errorf("step %d after step %d, of %d steps with %d that are not finite, %d samples and %v s: this cannot be", s.Step, before, s.Steps, s.NonFinite, s.Size, s.Seconds)
	}
	return nil
}

func addTo[T any](to *[]T, line []byte) error {
	var record T
	if err := json.Unmarshal(line, &record); err != nil {
		return err
	}
	*to = append(*to, record)
	return nil
}

// Done returns the number of steps that the run has done.
func (h *History) Done() int {
	done := h.Runs[len(h.Runs)-1].FirstStep
	if n := len(h.Steps); n > 0 {
		done = max(done, h.Steps[n-1].Step)
	}
	return done
}

// Restarts returns how often the run went on in a new process before it had ended.
func (h *History) Restarts() int {
	n := 0
	for _, r := range h.Runs[1:] {
		if !r.AfterEnd {
			n++
		}
	}
	return n
}
