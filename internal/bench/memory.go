// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// peakRSSBytes returns the most memory the process has had in RAM, 0 where the
// system does not say.
func peakRSSBytes() int64 { return statusBytes("VmHWM:") }

// residentBytes returns the memory the process has in RAM now.
func residentBytes() int64 { return statusBytes("VmRSS:") }

func statusBytes(field string) int64 {
	if runtime.GOOS != "linux" {
		return 0
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if rest, ok := strings.CutPrefix(s.Text(), field); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
