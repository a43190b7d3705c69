// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/train"
)

// backgroundFlag makes `cohort ckpt prove` leave the processors to others.
const backgroundFlag = "background"

// proveInChild is a [train.Prover] that proves in a process of its own, beside the rank that
// calls it. path is of the checkpoint.
func proveInChild(ctx context.Context, path string) (c *train.Comparison, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, exe, "ckpt", "prove", "--json", "--"+backgroundFlag, "--", path)
	cmd.Env = envvar.OutsideJob(os.Environ())
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, 5*time.Second
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != exitDiffers) {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("cohort ckpt prove ended with %w: %s", err, strings.TrimPrefix(lines[len(lines)-1], "cohort: "))
	}
	if err := json.Unmarshal(stdout.Bytes(), &c); err != nil {
		return nil, fmt.Errorf("cohort ckpt prove printed no comparison: %w", err)
	}
	return c, nil
}
