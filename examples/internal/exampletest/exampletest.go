// SPDX-License-Identifier: Apache-2.0

// Package exampletest has what the tests of the examples share. A test's binary is
// also the example's program, and a test can run it.
package exampletest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// asProgram makes the test's binary, and so its ranks, run the example.
const asProgram = "COHORT_TEST_EXAMPLE"

// Main is the TestMain of an example. In the environment of Env it runs the example's
// main function, otherwise the tests.
func Main(m *testing.M, main func()) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Env returns the environment in which the test's binary, os.Args[0], is the example.
func Env() []string { return append(os.Environ(), asProgram+"=1") }

// Run runs the example with args, as `go run` would, for at most five minutes. It returns
// the output. The test fails if the example fails, if the output lacks one of wants, or if
// the output reports leaked references.
func Run(t *testing.T, wants []string, args ...string) (stdout string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = Env()
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, complaints.String())
	}
	for _, want := range wants {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing from\n%s", want, out.String())
		}
	}
	if strings.Contains(complaints.String(), "refer") {
		t.Errorf("references have leaked:\n%s", complaints.String())
	}
	return out.String()
}
