// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/internal/errorfile"
)

func TestSpawn(t *testing.T) {
	p := startProcess(t, "spawner:")
	if code, _ := p.end(t); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.errs.String())
	}
	out := p.out.String()
	for text, n := range map[string]int{
		"before, rank \"\"\n": 1, "before, rank \"1\"\n": 2, "first main, rank ": 2, "first main, rank 1 of 2\n": 1,
		"second main, rank ": 3, "[rank2] second main, rank 2 of 3\n": 1, "after\n": 1,
	} {
		if got := strings.Count(out, text); got != n {
			t.Errorf("%d times %q, want %d:\n%s", got, text, n, out)
		}
	}
}

func TestSpawnError(t *testing.T) {
	p := startProcess(t, "spawner:fail")
	if code, _ := p.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(p.out.String(), "second: rank 2 of 3 exited with code 1") || !strings.Contains(p.errs.String(), "[rank2] rank 2 has had enough\n") {
		t.Errorf("output:\n%s%s", p.out.String(), p.errs.String())
	}
}

func TestSpawnSignal(t *testing.T) {
	p := startProcess(t, "spawner:wait")
	p.out.await(t, 3, "ready")
	_ = p.Process.Signal(syscall.SIGINT)
	if code, _ := p.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for i := range 3 {
		if want := fmt.Sprintf("[rank%d] saved, because rank %d got SIGINT\n", i, i); !strings.Contains(p.out.String(), want) {
			t.Errorf("no %q in:\n%s", want, p.out.String())
		}
	}
	if !strings.Contains(p.out.String(), "second: stopped by SIGINT\n") {
		t.Errorf("output:\n%s", p.out.String())
	}
}

// Half of a rank's environment is a launcher's mistake, not a place to start ranks.
func TestSpawnHalfEnvironment(t *testing.T) {
	for _, kv := range []string{"RANK=0", "WORLD_SIZE=2"} {
		p := startProcess(t, "spawner:", kv)
		if code, _ := p.end(t); code != 2 || !strings.Contains(p.out.String(), "second: environment variable "+kv[:strings.Index(kv, "=")]+" is set and ") {
			t.Errorf("%s: exit code %d\n%s", kv, code, p.out.String())
		}
	}
}

// Under a launcher, a program with Spawn is a rank and starts no others.
func TestSpawnUnderRun(t *testing.T) {
	var out output
	cfg := self(t, 2, "spawner:")
	cfg.Stdout = &out
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "first main") != 2 || strings.Contains(out.String(), "second") || strings.Contains(out.String(), "after") {
		t.Errorf("output:\n%s", out.String())
	}
}

// A rank that Spawn runs records its error and its panics by itself.
func TestSpawnRecords(t *testing.T) {
	p := startProcess(t, "spawner:fail")
	if code, _ := p.end(t); code != 1 {
		t.Errorf("code %d", code)
	}
	if !strings.Contains(p.out.String(), "second: rank 2 of 3 exited with code 1") {
		t.Errorf("printed\n%s", p.out.String())
	}
	path := filepath.Join(t.TempDir(), "error.json")
	p = startProcess(t, "spawner:fail", "RANK=2", "WORLD_SIZE=3", "COHORT_SPAWN=2", "TORCHELASTIC_ERROR_FILE="+path)
	if code, _ := p.end(t); code != 1 {
		t.Errorf("code %d", code)
	}
	if e, _, err := errorfile.Read(path); err != nil || e.Message != "rank 2 has had enough" {
		t.Errorf("recorded %+v, %v", e, err)
	}
	p = startProcess(t, "spawner:panic", "RANK=2", "WORLD_SIZE=3", "COHORT_SPAWN=2", "TORCHELASTIC_ERROR_FILE="+path)
	if code, _ := p.end(t); code != 2 {
		t.Errorf("code %d", code)
	}
	if e, _, err := errorfile.Read(path); err != nil || e.Message != "panic: out of range" || !strings.Contains(e.Callstack, "goroutine") {
		t.Errorf("recorded %+v, %v", e, err)
	}
}
