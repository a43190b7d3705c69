// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/devices"
)

// TestDevices: what is printed, in both forms, and the check on real ranks.
func TestDevices(t *testing.T) {
	j := start(t, nil, "devices", "--json", "--check", "--ranks", "2")
	code := j.wait(t)
	stdout, stderr := j.output()
	var l struct {
		devices.List
		Check string
	}
	if err := json.Unmarshal([]byte(stdout), &l); code != 0 || err != nil {
		t.Fatalf("code %d, %v: %q %q", code, err, stdout, stderr)
	}
	if l.CPU.Threads < 1 || l.CPU.Rates == nil || l.CPU.Rates.GFlopPerSec <= 0 || !strings.Contains(l.Check, "2 ranks are right") {
		t.Errorf("%s", stdout)
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
