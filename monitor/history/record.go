// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// FileName is the name of a history in a run's directory.
const FileName = "history.jsonl"

// Version is the version of the format. It stands in records of the kind run.
const Version = 1

// Seconds is a moment, in seconds since 1970.
type Seconds float64

// At returns a moment as seconds since 1970, exact to a millisecond.
func At(t time.Time) Seconds { return Seconds(float64(t.UnixMilli()) / 1e3) }

// Time returns the moment.
func (s Seconds) Time() time.Time { return time.UnixMilli(int64(math.Round(float64(s) * 1e3))) }

// Number is a number that may be missing: NaN and the infinities are null in a file.
type Number float64

// IsFinite says whether the number is there.
func (n Number) IsFinite() bool { return n-n == 0 }

// MarshalJSON writes the number, or null.
func (n Number) MarshalJSON() ([]byte, error) {
	if n.IsFinite() {
		return json.Marshal(float64(n))
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads the number; null is NaN.
func (n *Number) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}

// Run is the beginning of a process: the first of a run, or one that goes on.
type Run struct {
	Version   int     `json:"version"`
	Time      Seconds `json:"time"`
	Task      string  `json:"task"`
	Model     string  `json:"model,omitempty"`
	Data      string  `json:"data,omitempty"`
	NumParams int     `json:"params"`
	DType     string  `json:"dtype"`
	Ranks     int     `json:"ranks"`
	Threads   int     `json:"threads"` // of a rank
	Strategy  string  `json:"strategy,omitempty"`
	Transport string  `json:"transport,omitempty"`
	Unit      string  `json:"unit,omitempty"` // of sizes; "" if nothing is counted
	FirstStep int     `json:"first_step"`     // steps done before
	Steps     int     `json:"steps"`          // that the run is to have
	Resumed   string  `json:"resumed,omitempty"`
	AfterEnd  bool    `json:"after_end,omitempty"` // the process before had ended the run; the Writer sets it
}

// Step is one step, or several neighbours.
type Step struct {
	Step         int     `json:"step"`  // the last of them
	Steps        int     `json:"steps"` // how many
	Time         Seconds `json:"time"`  // of the end of the last
	Loss         Number  `json:"loss"`  // the mean of those that are finite
	NonFinite    int     `json:"nonfinite,omitempty"`
	LearningRate Number  `json:"lr"`        // of the last
	GradNorm     Number  `json:"grad_norm"` // the largest, before clipping
	Size         int     `json:"size"`      // of the batches of all ranks, in Run.Unit
	Seconds      float64 `json:"seconds"`
	Epoch        Number  `json:"epoch"` // after the last; NaN if the data have no end
}

// merged returns the record of a and then b.
func merged(a, b Step) Step {
	finite := func(s Step) float64 { return float64(s.Steps - s.NonFinite) }
	loss := b.Loss
	switch na, nb := finite(a), finite(b); {
	case nb == 0:
		loss = a.Loss
	case na > 0:
		loss = Number((float64(a.Loss)*na + float64(b.Loss)*nb) / (na + nb))
	}
	b.Loss = loss
	if a.GradNorm > b.GradNorm || math.IsNaN(float64(b.GradNorm)) {
		b.GradNorm = a.GradNorm
	}
	b.Steps += a.Steps
	b.NonFinite += a.NonFinite
	b.Size += a.Size
	b.Seconds += a.Seconds
	return b
}

// Metric is one result of an evaluation.
type Metric struct {
	Name   string `json:"name"`
	Value  Number `json:"value"`
	Unit   string `json:"unit,omitempty"`
	Higher bool   `json:"higher,omitempty"` // more is better
}

// Evaluation is the quality of the model after a step.
type Evaluation struct {
	Step    int      `json:"step"`
	Time    Seconds  `json:"time"`
	Metrics []Metric `json:"metrics"` // the first is the one that counts
}

// Saved is a checkpoint that is there.
type Saved struct {
	Step int     `json:"step"`
	Time Seconds `json:"time"`
	Path string  `json:"path"`
}

// Note is something that the user should know.
type Note struct {
	Step int     `json:"step"` // steps done by then
	Time Seconds `json:"time"`
	Text string  `json:"text"`
}

// Lost are steps that a process before has done, and that were done again.
type Lost struct {
	Time    Seconds `json:"time"`    // of the new beginning
	Step    int     `json:"step"`    // from which the run went on
	Until   int     `json:"until"`   // the last step that is known to have been done
	Last    Seconds `json:"last"`    // when that was
	Seconds float64 `json:"seconds"` // that these steps took
	Times   int     `json:"times"`   // how often this happened, where several records became one
}

// End is the end of a run that did all of its steps, or ended early.
type End struct {
	Step       int     `json:"step"`
	Time       Seconds `json:"time"`
	Checkpoint string  `json:"checkpoint,omitempty"`
	Best       string  `json:"best,omitempty"`
	BestStep   int     `json:"best_step,omitempty"`
}

// kinds of records, by the types that hold them.
func kindOf(record any) string {
	switch record.(type) {
	case Run:
		return "run"
	case Step:
		return "step"
	case Evaluation:
		return "eval"
	case Saved:
		return "saved"
	case Note:
		return "note"
	case Lost:
		return "lost"
	case Ranks:
		return "ranks"
	case Value:
		return "value"
	case Sample:
		return "sample"
	case End:
		return "end"
	}
	panic(fmt.Sprintf("history: no record is a %T", record))
}

// appendLine appends the line of a record.
func appendLine(to []byte, record any) []byte {
	text, err := json.Marshal(record)
	if err != nil { // no field of a record can fail
		panic(err)
	}
	to = append(to, `{"kind":"`...)
	to = append(to, kindOf(record)...)
	to = append(to, `",`...)
	to = append(to, text[1:]...)
	return append(to, '\n')
}
