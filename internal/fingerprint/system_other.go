// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package fingerprint

import (
	"runtime"
	"strconv"

	"github.com/cohort-ml/cohort/internal/kernel"
)

func (f *Fingerprint) collectSystem(source) {
	f.Set(CPU, "kernels", kernel.InstructionSet())
	f.Set(CPU, "online", strconv.Itoa(runtime.NumCPU()))
}

func (f *Fingerprint) collectClock(source) {}
