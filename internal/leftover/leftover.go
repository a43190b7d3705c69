// SPDX-License-Identifier: Apache-2.0

// Package leftover finds files that jobs of tests have left in the temporary directory. It is
// for the TestMain of packages whose tests launch jobs: a file that is left fails the tests.
// A failed job leaves the dumps of its flight recorders for its user, so a test of such a job
// sets COHORT_RECORDER_DIR.
package leftover

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir makes a directory. A TestMain sets it as TMPDIR before it runs the tests.
func Dir() string {
	dir, err := os.MkdirTemp("", "leftover-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return dir
}

// Check removes the directory. It returns the code of the tests, or 1 if jobs have left files
// in the directory.
func Check(dir string, code int) int {
	defer os.RemoveAll(dir)
	for _, pattern := range []string{"cohort-*", "torchelastic_*"} {
		left, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, path := range left {
			code = 1
			fmt.Fprintf(os.Stderr, "a test has left %s in the temporary directory\n", path)
			files, _ := filepath.Glob(filepath.Join(path, "*"))
			for _, file := range files { // the content shows which job it was
				b, _ := os.ReadFile(file)
				fmt.Fprintf(os.Stderr, "%s: %.2000s\n", file, b)
			}
		}
	}
	return code
}
