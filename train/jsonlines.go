// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// JSONLines reports to a program: one object a line on Out. What people should
// know goes to Notices.
type JSONLines struct {
	out, notices io.Writer
	line         bytes.Buffer
}

// NewJSONLines returns a reporter that writes objects to out.
func NewJSONLines(out, notices io.Writer) *JSONLines { return &JSONLines{out: out, notices: notices} }

// member is a key of an object with its value: a string, an integer or a
// float64, which becomes null where it is not finite.
type member struct {
	key   string
	value any
}

// object writes one, with its members in their order. A reader that has gone
// must not end the training.
func (j *JSONLines) object(members ...member) {
	j.line.Reset()
	for i, m := range members {
		if v, ok := m.value.(float64); ok && !isFinite(v) {
			m.value = nil
		}
		j.line.WriteByte("{,"[min(i, 1)])
		for k, part := range [...]any{m.key, m.value} {
			if k == 1 {
				j.line.WriteByte(':')
			}
			text, _ := json.Marshal(part) // of these kinds there is none that fails
			j.line.Write(text)
		}
	}
	j.line.WriteString("}\n")
	_, _ = j.out.Write(j.line.Bytes())
}

// Start writes nothing: the first object is that of the first step.
func (j *JSONLines) Start(Start) {}

// Step writes {"step", "loss", "tokens_per_s"}, where the last is called after
// the task's unit, and, as soon as there are any, "skipped", the number of steps
// that were left out, and "replaced", that of samples. The loss is null where it
// is not finite.
func (j *JSONLines) Step(s Step) {
	members := append(make([]member, 0, 5), member{"step", s.Step}, member{"loss", s.Loss})
	if s.Unit != "" {
		members = append(members, member{s.Unit + "_per_s", float64(s.Size) / s.Duration.Seconds()})
	}
	if s.Skipped > 0 {
		members = append(members, member{"skipped", s.Skipped})
	}
	if s.Replaced > 0 {
		members = append(members, member{"replaced", s.Replaced})
	}
	j.object(members...)
}

// Evaluation writes {"val_…", "step"} with the metrics' names.
func (j *JSONLines) Evaluation(e Evaluation) {
	var members []member
	for _, m := range e.Metrics {
		members = append(members, member{"val_" + m.Name, m.Value})
	}
	j.object(append(members, member{"step", e.Step})...)
}

// Saved writes {"checkpoint", "step"}.
func (j *JSONLines) Saved(s Saved) { j.object(member{"checkpoint", s.Path}, member{"step", s.Step}) }

// Finish writes {"sample", "checkpoint", "step"}, where the first is called as
// the task says, and before these "best", "best_step", if that is not the last.
func (j *JSONLines) Finish(f Finish) {
	var members []member
	if f.Key != "" {
		members = append(members, member{f.Key, f.Text})
	}
	if f.Best != nil {
		members = append(members, member{"best", f.Best.Path}, member{"best_step", f.Best.Step})
	}
	j.object(append(members, member{"checkpoint", f.Checkpoint}, member{"step", f.Steps})...)
}

// Notice prints the text for people.
func (j *JSONLines) Notice(text string) { fmt.Fprintln(j.notices, text) }
