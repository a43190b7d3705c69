// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"fmt"
)

// ProgressValue is the name of the value of a checkpoint that says where a run was, see
// [Progress].
const ProgressValue = "progress"

const progressVersion = 1

// Progress is where a run was when it was saved: all that is needed beside
// the tensors to go on as if it had never stopped.
type Progress struct {
	Task  string `json:"task,omitempty"` // what was trained: "lm", "vision"; "" in those of before there was more than one
	Step  int    `json:"step"`           // steps done
	Epoch int    `json:"epoch"`          // the one under way, from 0
	Seed  int64  `json:"seed"`
	// Fingerprint is that of the model's tensors, see [Fingerprint].
	Fingerprint string `json:"model_fingerprint"`
	// Loader, Trainer (the best evaluation), Generators (by name) and Recipe (the
	// run's settings) are their owners' own JSON.
	Loader     json.RawMessage            `json:"loader,omitempty"`
	Trainer    json.RawMessage            `json:"trainer,omitempty"`
	Generators map[string]json.RawMessage `json:"generators,omitempty"`
	Recipe     json.RawMessage            `json:"recipe,omitempty"`
}

// MarshalJSON adds the version.
func (p Progress) MarshalJSON() ([]byte, error) {
	type plain Progress
	return json.Marshal(struct {
		Version int `json:"version"`
		plain
	}{progressVersion, plain(p)})
}

// ReadProgress reads the value [ProgressValue].
func (c *Checkpoint) ReadProgress() (Progress, error) {
	var text json.RawMessage
	if err := c.Value(ProgressValue, &text); err != nil {
		return Progress{}, err
	}
	p, err := parseProgress(text)
	if err == nil && p.Step != c.Step {
		err = fmt.Errorf("it is that of step %d, the checkpoint that of step %d", p.Step, c.Step)
	}
	if err != nil {
		return Progress{}, fmt.Errorf("checkpoint: the progress of %s: %w", c.Path, err)
	}
	return p, nil
}

func parseProgress(b []byte) (Progress, error) {
	type plain Progress
	var p struct {
		Version int `json:"version"`
		plain
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return Progress{}, err
	}
	switch {
	case p.Version != progressVersion:
		return Progress{}, fmt.Errorf("it has version %d, this program reads version %d: use the program that wrote it, or a newer one", p.Version, progressVersion)
	case p.Step < 0 || p.Epoch < 0:
		return Progress{}, fmt.Errorf("step %d and epoch %d cannot be negative", p.Step, p.Epoch)
	}
	return Progress(p.plain), nil
}
