// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// spawnRole makes a process of the test binary a program that spawns two ranks,
// of which one misuses a tensor in the way that it names.
const spawnRole = "TRAIN_TEST_SPAWN"

func TestMain(m *testing.M) {
	if way := os.Getenv(spawnRole); way != "" {
		launch.Exit(launch.Spawn(context.Background(), 2, func(ctx context.Context) error { return misuse(ctx, way) }))
	}
	if envvar.Rank.IsSet() || envvar.Spawn.IsSet() {
		fmt.Fprintln(os.Stderr, "a rank must not run the tests")
		os.Exit(4)
	}
	os.Exit(runTests(m))
}

// runTests runs the tests with a cache of their own.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "train-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv(string(envvar.Cache), dir)
	return m.Run()
}

// misuse is a user's step on rank 1; rank 0 has nothing to do.
func misuse(ctx context.Context, way string) (err error) {
	if os.Getenv(string(envvar.Rank)) == "0" {
		return nil
	}
	a, b := tensor.Zeros(2, 3), tensor.Zeros(4, 5)
	if way == "outside" {
		a.MatMul(b) // nobody recovers
		return nil
	}
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	c.Call(nn.NewSequential(nn.NewLinear(&nn.Build{}, 4, 5)), a)
	return nil
}

// TestShapeErrorInProgramOfUser: wherever it happens, the user reads what did
// not fit, as the last words of the rank in the job's report.
func TestShapeErrorInProgramOfUser(t *testing.T) {
	for way, want := range map[string]string{
		"outside": "tensor: matmul(float32[2 3], float32[4 5]): the inner dims differ: 3 columns, 4 rows (at train/panic_test.go:",
		"module":  "forward of 0 (*nn.Linear): tensor: linear(float32[2 3], ",
	} {
		t.Run(way, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), spawnRole+"="+way, "GORACE=atexit_sleep_ms=0")
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("the program ended with %v", err)
			}
			text := string(out)
			_, report, ok := strings.Cut(text, "its error:\n")
			if !ok || !strings.Contains(report, "    | "+want) || strings.Count(text, want) < 2 {
				t.Errorf("no %q as the last words in\n%s", want, text)
			}
			if strings.Contains(text, "goroutine ") {
				t.Errorf("a stack beside the message:\n%s", text)
			}
		})
	}
}
