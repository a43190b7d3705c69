// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestGoesOn is `go run ./examples/checkpoint`: one of four ranks ends, and three go on from the
// last checkpoint.
func TestGoesOn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-out", out, "-kill", "70")
	cmd.Env = exampletest.Env()
	if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), "begins after step 0, 0 points seen") {
		t.Fatalf("the job with a rank that ends: %v\n%s", err, text)
	}
	ck, err := checkpoint.Open(t.Context(), storage.Dir(out), "")
	if err != nil || ck.Step != 40 && ck.Step != 60 { // that of step 60 may have been under way
		t.Fatalf("%+v, %v", ck, err)
	}
	seen := map[int]string{40: "after step 40, 3840 points", 60: "after step 60, 5760 points"}[ck.Step]
	exampletest.Run(t, []string{"FSDP over 3 ranks", seen, "step 200  loss 0.0"}, "-out", out, "-ranks", "3")
	if ck, err = checkpoint.Open(t.Context(), storage.Dir(out), ""); err != nil || ck.Step != 200 || ck.Verify(t.Context(), nil) != nil {
		t.Errorf("%+v, %v", ck, err)
	}
}
