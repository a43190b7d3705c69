// SPDX-License-Identifier: Apache-2.0

// Package leftover is for the TestMain of packages whose tests launch jobs: it makes what
// these leave in the temporary directory a failure. Dumps of the flight recorders of a job
// that fails are to stay, for its user: a test of one sets COHORT_RECORDER_DIR.
package leftover

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir makes the directory that a TestMain sets as TMPDIR before it runs the tests.
func Dir() string {
	dir, err := os.MkdirTemp("", "leftover-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return dir
}

// Check removes the directory, and returns the code of the tests, or 1 where jobs have left
// something there.
func Check(dir string, code int) int {
	defer os.RemoveAll(dir)
	for _, pattern := range []string{"cohort-*", "torchelastic_*"} {
		left, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, path := range left {
			code = 1
			fmt.Fprintf(os.Stderr, "a test has left %s in the temporary directory\n", path)
			files, _ := filepath.Glob(filepath.Join(path, "*"))
			for _, file := range files { // who it was
				b, _ := os.ReadFile(file)
				fmt.Fprintf(os.Stderr, "%s: %.2000s\n", file, b)
			}
		}
	}
	return code
}
