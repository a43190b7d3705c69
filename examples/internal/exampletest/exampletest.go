// SPDX-License-Identifier: Apache-2.0

// Package exampletest is what the tests of the examples have in common: a test's
// binary that is also the example, and a run of it.
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

// Main is the TestMain of an example, whose main function it takes: it runs main in
// an environment that is Env's, and else the tests.
func Main(m *testing.M, main func()) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Env returns the environment in which the test's binary, os.Args[0], is the example.
func Env() []string { return append(os.Environ(), asProgram+"=1") }

// Run runs the example with args for at most five minutes, as `go run` would, and returns
// what it prints. The test fails if the example does, if what it prints lacks one of
// wants, or if it complains of references that have leaked.
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
