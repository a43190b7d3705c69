// SPDX-License-Identifier: Apache-2.0

// Package torchtest runs Python programs with PyTorch for the tests of file formats: PyTorch
// is their oracle. It looks at the interpreters that the test lists, which are those of
// COHORT_TEST_PYTHONS, and at python3. A test is skipped where none of them has what it needs,
// and in short runs.
package torchtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var (
	mu    sync.Mutex
	found = map[string]string{} // interpreter by what was imported, "" if there is none
)

// Python returns an interpreter that can run the imports, such as
// "import torch.distributed.checkpoint", with PyTorch 2 or later. It skips the test if there is
// none. listed are interpreters with colons between them, as in COHORT_TEST_PYTHONS.
func Python(t testing.TB, listed, imports string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("importing PyTorch takes seconds: short runs do without")
	}
	mu.Lock()
	defer mu.Unlock()
	python, looked := found[imports]
	if !looked {
		python = look(listed, imports)
		found[imports] = python
	}
	if python == "" {
		t.Skipf("no python3 here can do %q (list interpreters in COHORT_TEST_PYTHONS)", imports)
	}
	return python
}

func look(listed, imports string) string {
	// Who has an older PyTorch is passed over without importing it, which takes seconds.
	const recent = `import importlib.metadata as m; assert int(m.version("torch").split(".")[0]) >= 2; `
	// The listed ones come first: they are newer than what a system has.
	names := append(filepath.SplitList(listed), "python3", "/usr/bin/python3")
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil && exec.Command(path, "-c", recent+imports).Run() == nil {
			return path
		}
	}
	return ""
}

// Run runs a script of the package's folder testdata and returns what it prints. The test
// fails if the script fails.
func Run(t testing.TB, python, script string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, append([]string{filepath.Join("testdata", script)}, args...)...)
	// Scripts on one machine need no network, and these do not warn of what they do on purpose.
	cmd.Env = append(os.Environ(), "PYTHONWARNINGS=ignore", "OMP_NUM_THREADS=1", "TORCH_CPP_LOG_LEVEL=ERROR", "HF_HUB_OFFLINE=1", "GLOO_SOCKET_IFNAME=lo")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", script, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String()
}
