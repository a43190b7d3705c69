// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/memlimit"
)

// joinCgroup starts a rank in a memory cgroup of its own: it is a script that takes the directory
// of the groups, the name of the file with the limit, the limit, and the command.
const joinCgroup = `#!/bin/sh
d="$1/rank$RANK"
mkdir "$d" 2>/dev/null
echo "$3" > "$d/$2" && echo $$ > "$d/cgroup.procs" || exit 77
shift 3
exec "$@"
`

// memoryCgroups returns a directory for memory cgroups, and the name of the file with a limit.
func memoryCgroups(t *testing.T) (dir, limit string) {
	t.Helper()
	parent, limit := memlimit.Cgroup("/proc/self/cgroup", "/sys/fs/cgroup")
	if parent == "" || os.Getuid() != 0 {
		t.Skip("needs root and a memory cgroup")
	}
	dir = filepath.Join(parent, fmt.Sprintf("cohort-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		groups, _ := filepath.Glob(filepath.Join(dir, "rank*"))
		for _, g := range append(groups, dir) {
			_ = os.Remove(g)
		}
	})
	if limit == "memory.max" { // of version 2: below here, too
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0o644); err != nil {
			t.Skip(err)
		}
	}
	return dir, limit
}

// TestModelThatDoesNotFit: a model whose state is twice what a rank may use is refused as
// replicas, with an error that says how it fits; so it trains, is saved, and goes on.
func TestModelThatDoesNotFit(t *testing.T) {
	if testing.Short() {
		t.Skip("trains 19 million parameters")
	}
	const limit = 128 << 20
	groups, file := memoryCgroups(t)
	script := filepath.Join(t.TempDir(), "join")
	if err := os.WriteFile(script, []byte(joinCgroup), 0o755); err != nil {
		t.Fatal(err)
	}
	text, out := writeText(t), filepath.Join(t.TempDir(), "out")
	run := func(flags string) (code int, all string) {
		args := []string{"run", "--nproc-per-node", "6", "--", script, groups, file, fmt.Sprint(limit), os.Args[0]}
		args = append(args, strings.Fields("train lm --vocab 300 --context 16 --width 256 --heads 4 --layers 24 --batch 1 --eval-tokens 32 --sample-tokens 2 --warmup 0 --workers 1")...)
		args = append(args, "--data", text, "--out", out)
		j := start(t, nil, append(args, strings.Fields(flags)...)...)
		code = j.wait(t)
		stdout, stderr := j.output()
		return code, stdout + stderr
	}
	code, report := run("--steps 2 --replicate 6")
	for _, want := range []string{"out of memory: the state of a model of 1.9e+07 parameters", "takes 304.", " on each rank, and there are 134.2 MB", file + " of the cgroup ", "--fsdp 3"} {
		if code != 1 || !strings.Contains(report, want) {
			t.Errorf("replicas end with code %d and lack %q:\n%s", code, want, report)
		}
	}
	for i, want := range []string{"step 2: saved", "resumed at step 2"} {
		code, report := run(fmt.Sprintf("--steps %d --fsdp 6", 2+i))
		if code != 0 || !strings.Contains(report, want) {
			t.Fatalf("shards end with code %d, want 0 and %q:\n%s", code, want, report)
		}
		if want := "a step waits until its checkpoint is written"; !strings.Contains(report, want) {
			t.Errorf("shards lack %q:\n%s", want, report)
		}
	}
}
