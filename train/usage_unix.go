// SPDX-License-Identifier: Apache-2.0

//go:build unix

package train

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processUsage returns the processor time of the process so far, and the bytes that it has in memory, 0
// where the system does not say.
func processUsage() (cpu time.Duration, resident int64) {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		cpu = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	text, err := os.ReadFile("/proc/self/statm") // Linux alone has it
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		resident = pages * int64(os.Getpagesize())
	}
	return cpu, resident
}
