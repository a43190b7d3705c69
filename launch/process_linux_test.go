// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os/exec"
	"testing"
)

// TestTicks: a process that computes is told from one that does not, however both are
// called: by that a killed one whose memory is taken back is told from one that hangs.
func TestTicks(t *testing.T) {
	pids := map[string]int{}
	for name, script := range map[string]string{"busy": "while :; do :; done", "idle": "exec sleep 60"} {
		cmd := exec.Command("/bin/sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		pids[name] = cmd.Process.Pid
	}
	eventually(t, func() string {
		if ticksOf(pids["busy"]) < 3 {
			return "a loop takes no processor time"
		}
		return ""
	})
	if n := ticksOf(pids["idle"]); n > 1 {
		t.Errorf("a process that sleeps has taken %d ticks", n)
	}
	if n := ticksOf(1 << 30); n != 0 {
		t.Errorf("no process has taken %d ticks", n)
	}
}
