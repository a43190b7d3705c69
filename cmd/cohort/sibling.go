// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/dlopen"
)

// cudaProgram is the name of the program that is this one, built with the tag cuda.
const cudaProgram = "cohort-cuda"

// useDevice checks the value of --device. A program that was built without CUDA becomes the
// program cohort-cuda beside it, with the same arguments, and then does not return.
func useDevice(name string) error {
	switch name {
	case "cpu":
		return nil
	case "cuda":
	default:
		return usageError{fmt.Errorf("--device %s: want cpu or cuda", name)}
	}
	if dlopen.Built {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path, err := sibling(self)
	if err != nil {
		return usageError{fmt.Errorf("--device cuda: %w", err)}
	}
	return fmt.Errorf("start %s: %w", path, syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ()))
}

// sibling returns the path of the program with CUDA beside the program self.
func sibling(self string) (string, error) {
	path := filepath.Join(filepath.Dir(self), cudaProgram)
	advice := fmt.Sprintf("; or put that program beside %s as %s", filepath.Base(self), cudaProgram)
	if filepath.Base(self) == cudaProgram {
		advice = ""
	} else if s, err := os.Stat(path); err == nil && s.Mode().IsRegular() {
		return path, nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return "", fmt.Errorf("%w%s", cuda.ErrNotBuilt, advice)
}
