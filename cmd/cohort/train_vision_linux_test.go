// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTrainVision: `cohort train vision` as a newcomer runs it, two processes,
// tells more than 97 of 100 digits, in a small part of a minute.
func TestTrainVision(t *testing.T) {
	j := start(t, nil, "train", "vision", "--ranks", "2", "--model", "mlp", "--out", filepath.Join(t.TempDir(), "run"), "--json")
	if code := j.wait(t); code != 0 {
		_, stderr := j.output()
		t.Fatalf("code %d:\n%s", code, stderr)
	}
	// Of the processors' time: another program may have most of it.
	if d := j.cmd.ProcessState.UserTime() + j.cmd.ProcessState.SystemTime(); d > time.Minute {
		t.Errorf("it took %v", d)
	}
	stdout, _ := j.output()
	accuracy := 0.0
	for line := range strings.Lines(stdout) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if a, ok := v["val_accuracy"].(float64); ok {
			accuracy = a
		}
	}
	if accuracy < 0.97 {
		t.Errorf("an accuracy of %v", accuracy)
	}
	if code, _, stderr := cohort("train", "vision", "--augmnt", "none"); code != 2 || !strings.Contains(stderr, "did you mean --augment?") {
		t.Errorf("a flag with a slip: code %d, %s", code, stderr)
	}
}
