// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/models"
)

func TestTrainsAndSaves(t *testing.T) {
	for _, name := range []string{"gpt2", "llama", "bert"} {
		from := filepath.Join("..", "..", "models", "testdata", "golden", name)
		to := filepath.Join(t.TempDir(), name)
		if err := finetune(t.Context(), from, to, 4); err != nil {
			t.Fatal(err)
		}
		if _, err := models.LoadHuggingFace(to); err != nil {
			t.Errorf("what was saved does not load: %v", err)
		}
		if err := finetune(t.Context(), from, to, 4); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("training over a model returned %v", err)
		}
	}
	if err := finetune(t.Context(), t.TempDir(), "to", 4); err == nil {
		t.Error("an empty folder trains")
	}
	if _, err := os.Stat("to"); err == nil || !os.IsNotExist(err) {
		t.Errorf("a failed run has left its folder: %v", err)
	}
}
