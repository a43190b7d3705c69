// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// TestNodesNotice: a machine that has notice leaves the job, its rank finds the
// notice, and the other machine goes on alone.
func TestNodesNotice(t *testing.T) {
	dir := t.TempDir()
	token := envvar.Token.Assign(transport.NewToken().Text())
	worker := `trap 'cat "$COHORT_NOTICE" 2>/dev/null; exit 0' TERM
echo "$WORLD_SIZE here"
if [ $WORLD_SIZE = 1 ] && [ -e '` + dir + `/of-two' ]; then exit 0; fi
while :; do sleep 0.02; done`
	run := func(notice string) *job {
		return start(t, []string{token}, "run", "--nnodes", "1:2", "--rdzv-backend", "file", "--rdzv-endpoint", filepath.Join(dir, "meeting"), "--rdzv-id", "notice",
			"--notice-file", filepath.Join(dir, notice), "/bin/sh", "-c", worker)
	}
	stays, goes := run("of-one"), run("of-two")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		one, _ := stays.output()
		two, _ := goes.output()
		if strings.Contains(one, "2 here") && strings.Contains(two, "2 here") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the nodes have not met: %q, %q", one, two)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("taken back\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "of-two")); err != nil { // there with all that it says
		t.Fatal(err)
	}
	code := goes.wait(t)
	stdout, stderr := goes.output()
	if code != 1 || !strings.Contains(stdout, `{"notice":"notice file `+dir+`/of-two: taken back","deadline":"`) ||
		!strings.Contains(stderr, "stopped, because this machine is about to go: notice file ") {
		t.Errorf("the one that goes: code %d\n%s\n%s", code, stdout, stderr)
	}
	code = stays.wait(t)
	stdout, stderr = stays.output()
	if code != 0 || !strings.Contains(stdout, "1 here") || strings.Contains(stdout, "deadline") || !strings.Contains(stderr, "it is about to go: notice file ") {
		t.Errorf("the one that stays: code %d\n%s\n%s", code, stdout, stderr)
	}
}
