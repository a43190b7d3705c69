// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pythonWith returns a Python in which a module can be imported: of COHORT_TEST_PYTHONS, or python3. It skips the
// test where there is none.
func pythonWith(t *testing.T, module, hint string) string {
	t.Helper()
	for _, name := range append(filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS")), "python3", "/usr/bin/python3") {
		if exec.Command(name, "-c", "import "+module).Run() == nil {
			return name
		}
	}
	t.Skipf("no Python here has %s: list interpreters in COHORT_TEST_PYTHONS (%s)", module, hint)
	return ""
}

// python runs a Python that has the client of this repository and a command cohort, which is this program.
func python(t *testing.T, name, dir string, args ...string) []byte {
	t.Helper()
	client, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", cliMain, exe)
	if err := os.WriteFile(filepath.Join(bin, "cohort"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+client, "PYTHONDONTWRITEBYTECODE=1", "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, stderr.String())
	}
	return out
}

// TestNotebook: the notebook of the client starts a job of two ranks, shows its curves while it runs, stops it, and
// has its history.
func TestNotebook(t *testing.T) {
	name := pythonWith(t, "nbclient, ipykernel, numpy", "pip install nbclient ipykernel numpy")
	notebook, err := filepath.Abs("../../clients/python/notebook.ipynb")
	if err != nil {
		t.Fatal(err)
	}
	const run = `
import sys, nbformat, nbclient
nb = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(nb, timeout=300, kernel_name="python3").execute()
print(nbformat.writes(nb))`
	out := python(t, name, t.TempDir(), "-W", "ignore", "-c", run, notebook)
	var nb struct {
		Cells []struct {
			ID      string
			Outputs []json.RawMessage
		}
	}
	if err := json.Unmarshal(out, &nb); err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, c := range nb.Cells {
		for _, o := range c.Outputs {
			shown[c.ID] += string(o)
		}
	}
	for id, wants := range map[string][]string{
		"watch": {`<svg`, `polyline`, `>loss<`, `tokens a second`}, "stop": {"exit code", "saved"}, "history": {`'step': `, `'eval': `}, "picture": {`<svg`, `out/notebook: step `},
	} {
		for _, want := range wants {
			if !strings.Contains(shown[id], want) {
				t.Errorf("the cell %s does not show %q:\n%s", id, want, shown[id])
			}
		}
	}
}
