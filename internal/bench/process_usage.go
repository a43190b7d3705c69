// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
)

// usage is the processor time and memory that the process has used so far.
type usage struct {
	cpuSeconds  float64 // processor time, user and system
	gcSeconds   float64 // of it in the collector: marking, assists, pauses
	numGC       uint64  // collections
	allocs      uint64  // objects put on the collector's heap
	allocsBytes uint64
}

// readUsage returns the usage so far. The collector's share is added at the end of
// each collection. It includes pauses, on every processor that the runtime may use,
// and marking on processors that were idle.
func readUsage() usage {
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(s)
	u := usage{gcSeconds: s[0].Value.Float64(), numGC: s[1].Value.Uint64(), allocs: s[2].Value.Uint64(), allocsBytes: s[3].Value.Uint64()}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		for _, t := range []syscall.Timeval{r.Utime, r.Stime} {
			u.cpuSeconds += float64(t.Sec) + float64(t.Usec)/1e6
		}
	}
	return u
}

// since returns the usage after before.
func (u usage) since(before usage) usage {
	return usage{
		u.cpuSeconds - before.cpuSeconds, u.gcSeconds - before.gcSeconds,
		u.numGC - before.numGC, u.allocs - before.allocs, u.allocsBytes - before.allocsBytes,
	}
}

// collected returns the fields of a result about the garbage collector, for the usage
// of numSteps steps.
func (u usage) collected(numSteps int) *Collected {
	c := &Collected{NumGC: int(u.numGC), AllocsPerStep: float64(u.allocs) / float64(numSteps), AllocBytesPerStep: float64(u.allocsBytes) / float64(numSteps)}
	if u.cpuSeconds > 0 {
		c.GCCPUShare = u.gcSeconds / u.cpuSeconds
	}
	return c
}

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
