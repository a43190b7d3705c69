// SPDX-License-Identifier: Apache-2.0

// Package loaded is for tests that promise how soon something happens: it says by how
// much a machine is slower that does other things at the same time. A test that can do
// without a bound on time does without.
package loaded

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"
)

// Allow returns the time that what takes d on a quiet machine may take on this one: as
// many times d as there are programs for each processor that want one, of the last
// minute or of this moment. Where the system does not tell, it is d.
func Allow(d time.Duration) time.Duration {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return d
	}
	return time.Duration(float64(d) * max(1, wanting(text)/float64(runtime.NumCPU())))
}

// wanting reads from a line such as "0.61 0.70 0.81 3/1024 4711" (proc_loadavg(5)) how
// many programs want a processor, 0 if it is no such line.
func wanting(loadavg []byte) float64 {
	fields := bytes.Fields(loadavg)
	if len(fields) < 4 {
		return 0
	}
	running, _, _ := bytes.Cut(fields[3], []byte("/"))
	now, err := strconv.Atoi(string(running))
	minute, errMinute := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil || errMinute != nil {
		return 0
	}
	return max(minute, float64(now))
}
