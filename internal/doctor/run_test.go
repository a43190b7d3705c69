// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTroubles: the examples of each trouble are found as that trouble, alone.
func TestTroubles(t *testing.T) {
	s := newSearch()
	names := map[string]bool{}
	for _, trouble := range Troubles() {
		if names[trouble.Name] || len(trouble.Examples) == 0 || trouble.Mend == "" || trouble.Why == "" {
			t.Errorf("%q stands twice, or is not whole", trouble.Name)
		}
		names[trouble.Name] = true
		for _, line := range trouble.Examples {
			if got := s.trouble([]byte(line)); got == nil || got.Name != trouble.Name {
				t.Errorf("%q is not found as %q: %+v", line, trouble.Name, got)
			}
		}
	}
	if !names[mismatchTrouble] {
		t.Errorf("no trouble %q", mismatchTrouble)
	}
	for _, line := range []string{
		"step 100  loss 2.31  lr 3e-4  1,234 tokens/s", "saved out/step-100", "finance data loaded: 12 rows", "loss: 0.12 information gain",
		"connected to 10.0.0.2:4711", "epoch 3: banana 0.5", "the out directory is out/memory", "reading 128 files of /dev/shm",
	} {
		if got := s.trouble([]byte(line)); got != nil {
			t.Errorf("%q is taken for %q", line, got.Name)
		}
	}
}

// write lays a file of a run.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestReadRun: the cause is told and not what follows from it, wherever in a long file it is.
func TestReadRun(t *testing.T) {
	dir := t.TempDir()
	filler := strings.Repeat("step 1 loss 2.0\n", 200_000)
	write(t, dir, "none_1/attempt_0/0/stderr.log", "RuntimeError: Connection closed by peer [10.0.0.2]:4711\n")
	write(t, dir, "none_1/attempt_0/1/stderr.log", filler+"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
	write(t, dir, "none_1/attempt_0/1/error.json", `{"message": {"message": "OutOfMemoryError: CUDA out of memory", "extraInfo": {}}}`)
	write(t, dir, "weights.bin", "CUDA out of memory")
	r, err := ReadRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.Files != 3 || len(r.Findings) != 1 || r.Findings[0].Check != "GPU out of memory" || len(r.Findings[0].Lines) != 2 ||
		!strings.Contains(r.Findings[0].What, filepath.Join("none_1", "attempt_0", "1", "stderr.log")) {
		t.Errorf("%+v", r)
	}
	// Alone, the same line of rank 0 is the trouble.
	alone := t.TempDir()
	write(t, alone, "0/stderr.log", "RuntimeError: Connection closed by peer [10.0.0.2]:4711\n")
	if r, err = ReadRun(alone); err != nil || len(r.Findings) != 1 || r.Findings[0].Check != "network" {
		t.Errorf("%+v, %v", r, err)
	}
	// A file alone, and a run without trouble.
	if r, err = ReadRun(filepath.Join(alone, "0", "stderr.log")); err != nil || len(r.Findings) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	calm := t.TempDir()
	write(t, calm, "stdout.log", filler)
	if r, err = ReadRun(calm); err != nil || len(r.Findings) != 0 || r.Files != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, wrong := range []string{t.TempDir(), filepath.Join(calm, "missing")} {
		if r, err := ReadRun(wrong); err == nil {
			t.Errorf("%s: %+v", wrong, r)
		}
	}
}

// TestPatterns: patterns compile, and none fits an empty line.
func TestPatterns(t *testing.T) {
	for _, trouble := range Troubles() {
		for _, p := range append(append([]string(nil), trouble.Lines...), trouble.But...) {
			if re, err := regexp.Compile(p); err != nil || re.MatchString("") {
				t.Errorf("%s: pattern %q: %v", trouble.Name, p, err)
			}
		}
	}
}
