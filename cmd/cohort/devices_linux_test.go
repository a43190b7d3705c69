// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/devices"
	"github.com/cohort-ml/cohort/internal/dlopen"
)

// TestDevices: what is printed, in both forms, and the check on real ranks.
func TestDevices(t *testing.T) {
	j := start(t, nil, "devices", "--json", "--check", "--ranks", "2")
	code := j.wait(t)
	stdout, stderr := j.output()
	var l struct {
		devices.List
		CUDA  cuda.Status
		Check string
	}
	if err := json.Unmarshal([]byte(stdout), &l); code != 0 || err != nil {
		t.Fatalf("code %d, %v: %q %q", code, err, stdout, stderr)
	}
	if l.CPU.Threads < 1 || l.CPU.Rates == nil || l.CPU.Rates.GFlopPerSec <= 0 || !strings.Contains(l.Check, "2 ranks are right") {
		t.Errorf("%s", stdout)
	}
	if d := l.CUDA; d.Built != dlopen.Built || len(d.Problems)+len(d.Devices) == 0 {
		t.Errorf("of CUDA: %+v", d)
	}
	if !dlopen.Built && !strings.HasPrefix(l.CUDA.Problems[0], "built without CUDA: ") {
		t.Errorf("of CUDA: %q", l.CUDA.Problems)
	}
	j = start(t, nil, "devices", "--measure=false")
	code = j.wait(t)
	stdout, stderr = j.output()
	if code != 0 || !strings.HasPrefix(stdout, "cpu: ") || !strings.Contains(stdout, "gpu") || strings.Contains(stdout, "measured") {
		t.Errorf("code %d: %q %q", code, stdout, stderr)
	}
	if runtime.GOOS == "linux" && !strings.Contains(stdout, "memory: ") {
		t.Errorf("no memory in %q", stdout)
	}
	j = start(t, nil, "devices", "--check", "--ranks", "0")
	if code := j.wait(t); code != 2 {
		t.Errorf("--ranks 0: code %d, want 2", code)
	}
}

// TestCUDASibling: a program without CUDA finds the one with it beside itself, and says what
// to do where there is none.
func TestCUDASibling(t *testing.T) {
	dir := t.TempDir()
	self := filepath.Join(dir, "cohort")
	if _, err := sibling(self); err == nil || !strings.HasPrefix(err.Error(), "built without CUDA: ") || !strings.HasSuffix(err.Error(), "beside cohort as cohort-cuda") {
		t.Errorf("without a sibling: %v", err)
	}
	want := filepath.Join(dir, cudaProgram)
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := sibling(self); err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	// A program of that name that was built without CUDA does not run itself for ever.
	if _, err := sibling(want); err == nil || strings.Contains(err.Error(), "beside") {
		t.Errorf("of itself: %v", err)
	}
	if dlopen.Built {
		return
	}
	j := start(t, nil, "devices", "--device", "cuda")
	code := j.wait(t)
	if _, stderr := j.output(); code != 2 || !strings.HasPrefix(stderr, "cohort: --device cuda: built without CUDA: ") {
		t.Errorf("code %d: %q", code, stderr)
	}
	j = start(t, nil, "devices", "--device", "tpu")
	code = j.wait(t)
	if _, stderr := j.output(); code != 2 || !strings.Contains(stderr, "want cpu or cuda") {
		t.Errorf("code %d: %q", code, stderr)
	}
}
