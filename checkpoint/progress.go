// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// The files of a run's checkpoint, beside config.json and tokenizer.json as
// the model needs them.
const (
	ModelFile     = "model.safetensors"
	OptimizerFile = "optimizer.safetensors"
	ProgressFile  = "progress.json"
)

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

// progressJSON is the file: the version comes first.
type progressJSON struct {
	Version int `json:"version"`
	Progress
}

// WriteProgress writes progress.json.
func (w *Writer) WriteProgress(p Progress) error {
	return w.WriteJSON(ProgressFile, progressJSON{progressVersion, p})
}

// ReadProgress reads progress.json.
func (c *Checkpoint) ReadProgress() (Progress, error) {
	b, err := c.ReadFile(ProgressFile, 64<<20)
	if err != nil {
		return Progress{}, err
	}
	p, err := parseProgress(b)
	if err == nil && p.Step != c.Step {
		err = fmt.Errorf("it is that of step %d, the checkpoint that of step %d", p.Step, c.Step)
	}
	if err != nil {
		return Progress{}, fmt.Errorf("checkpoint: reading %s: %w", filepath.Join(c.Path, ProgressFile), err)
	}
	return p, nil
}

func parseProgress(b []byte) (Progress, error) {
	var p progressJSON
	if err := json.Unmarshal(b, &p); err != nil {
		return Progress{}, err
	}
	switch {
	case p.Version != progressVersion:
		return Progress{}, fmt.Errorf("it has version %d, this program reads version %d: use the program that wrote it, or a newer one", p.Version, progressVersion)
	case p.Step < 0 || p.Epoch < 0:
		return Progress{}, fmt.Errorf("step %d and epoch %d cannot be negative", p.Step, p.Epoch)
	}
	return p.Progress, nil
}
