// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package devices

import "runtime"

func findCPU(string) (CPU, []string) {
	return CPU{Threads: runtime.NumCPU()}, []string{"only on Linux are model, caches and memory of the processors known"}
}
