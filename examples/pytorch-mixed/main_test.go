// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// eachPython runs a test with each PyTorch here, those listed in
// COHORT_TEST_PYTHONS too.
func eachPython(t *testing.T, test func(t *testing.T, python string)) {
	if testing.Short() {
		t.Skip("-short leaves PyTorch out")
	}
	var tried []string
	for _, name := range append([]string{"python3", "/usr/bin/python3"}, filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS"))...) {
		path, err := exec.LookPath(name)
		if err != nil || slices.Contains(tried, path) {
			continue
		}
		if _, err := needPyTorch(t.Context(), path); err != nil {
			continue
		}
		tried = append(tried, path)
		t.Run(strings.ReplaceAll(strings.Trim(path, "/"), "/", "-"), func(t *testing.T) { test(t, path) })
	}
	if len(tried) == 0 {
		t.Skip("no python3 here has PyTorch (Debian's package python3-torch, or list interpreters in COHORT_TEST_PYTHONS)")
	}
}

// example runs the program and returns what it prints.
func example(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = exampletest.Env()
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w\n%s\n%s", err, out.String(), complaints.String())
	}
	return out.String(), nil
}

// TestTrain: two ranks of each kind learn to read digits, and have the same
// parameters in the end, bit for bit.
func TestTrain(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, python string) {
		out, err := example(t, "--python", python)
		if err != nil {
			t.Fatal(err)
		}
		accuracy := 0.0
		sums := map[string]int{}
		for line := range strings.Lines(out) {
			var epoch int
			var loss float64
			if n, _ := fmt.Sscanf(line, "[rank0] epoch %d loss %f test accuracy %f %%", &epoch, &loss, &accuracy); n == 0 && strings.Contains(line, "parameters") {
				_, sum, _ := strings.Cut(line, ": ")
				sums[strings.TrimSpace(sum)]++
			}
		}
		if accuracy < 92 {
			t.Errorf("the test accuracy is %v %%, want at least 92 %%", accuracy)
		}
		if len(sums) != 1 || slices.Max(slices.Collect(maps.Values(sums))) != 4 {
			t.Errorf("the ranks say of their parameters %v, want the same four times", sums)
		}
		if t.Failed() {
			t.Log(out)
		}
	})
}

func TestFeed(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, python string) {
		out, err := example(t, "--python", python, "feed")
		if err != nil {
			t.Fatal(err)
		}
		var batches int
		var first, last float64
		_, line, _ := strings.Cut(out, "[rank2] ")
		if _, err := fmt.Sscanf(line, "fed %d batches of 32 images to 2 PyTorch ranks; their loss went from %f to %f", &batches, &first, &last); err != nil || last > 0.6*first {
			t.Errorf("%q: %v", out, err)
		}
	})
}

func TestStore(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, python string) {
		out, err := example(t, "--python", python, "store")
		if want := "Go says: hello from Go\nvisits: 1\nPython says: hello from Python\nvisits: 2\n"; err != nil || !strings.HasSuffix(out, want) {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// TestMissing: the program says what is missing, and how to get it.
func TestMissing(t *testing.T) {
	for _, python := range []string{filepath.Join(t.TempDir(), "python3"), "/bin/true"} {
		_, err := example(t, "--python", python)
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(err.Error(), "apt-get install python3-torch") {
			t.Errorf("%s: %v", python, err)
		}
	}
	if _, err := example(t, "--python", "/bin/true", "dance"); err == nil {
		t.Error("no error for an example that there is not")
	}
}
