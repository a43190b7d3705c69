// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Result is one measured case. Fields that do not apply are left out.
type Result struct {
	Bench string `json:"bench"`
	Case  string `json:"case"`
	Model string `json:"model,omitempty"` // where the case is not the model
	// Layout tells which operands of a matrix product are transposed: "nn",
	// "nt" (the second) or "tn" (the first).
	Layout       string  `json:"layout,omitempty"`
	Backend      string  `json:"backend,omitempty"`
	Transport    string  `json:"transport,omitempty"`
	Memory       string  `json:"memory,omitempty"` // of the tensors: "shared" or "private"
	DType        string  `json:"dtype,omitempty"`
	Ranks        int     `json:"ranks,omitempty"`
	Threads      int     `json:"threads,omitempty"` // of each rank
	Batch        int     `json:"batch,omitempty"`   // samples or sequences of a rank's step
	Bytes        int     `json:"bytes,omitempty"`   // of each rank's tensor
	Params       int     `json:"params,omitempty"`
	Clients      int     `json:"clients,omitempty"`     // callers with one call under way each
	Connections  int     `json:"connections,omitempty"` // that they have together
	OpsPerSec    float64 `json:"ops_per_s,omitempty"`   // of all clients
	Calls        int     `json:"calls,omitempty"`       // under way together
	CallsPerSec  float64 `json:"calls_per_s,omitempty"`
	RowsPerSec   float64 `json:"rows_per_s,omitempty"` // each pulled and pushed
	MedianMicros float64 `json:"median_us"`
	MinMicros    float64 `json:"min_us,omitempty"`
	P99Micros    float64 `json:"p99_us,omitempty"`
	GBPerSec     float64 `json:"gb_per_s,omitempty"` // Bytes (of an echo: both ways) by MedianMicros, in 10⁹ bytes
	// WaitCPUMicros is the processor time that a rank spent waiting for another.
	WaitCPUMicros float64 `json:"wait_cpu_us,omitempty"`
	// CPUMicros is the processor time of one operation, at both ends.
	CPUMicros   float64 `json:"cpu_us,omitempty"`
	GFlopPerSec float64 `json:"gflop_per_s,omitempty"`
	// PeakRSSBytes is the most memory the process has had; GrowthBytes is
	// that less what it had before the case began.
	PeakRSSBytes int64 `json:"peak_rss_bytes,omitempty"`
	GrowthBytes  int64 `json:"growth_bytes,omitempty"`
	*Collected         // nil where it is not measured
	*Loading           // of the bench loader alone
	*Sharding          // of the bench shard alone
	*Saving            // of the bench ckpt alone
	*Table             // of the bench ps alone
}

// Collected says what the garbage collector did while a case was measured. A
// collection starts when the heap has doubled, so that few steps may have none. With
// some hundred steps, the share is that of a long run.
type Collected struct {
	// GCCPUShare is the collector's part of the process's processor time.
	GCCPUShare        float64 `json:"gc_cpu_share"`
	NumGC             int     `json:"num_gc"`          // collections
	AllocsPerStep     float64 `json:"allocs_per_step"` // objects put on its heap
	AllocBytesPerStep float64 `json:"alloc_bytes_per_step"`
}

// WriteJSON writes the result as one line of JSON.
func (r Result) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteText writes the result as one line for people. The lines of one bench
// are aligned.
func (r Result) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-14s", r.Bench, r.Case)
	for _, word := range []struct {
		text  string
		width int
	}{{r.Model, 5}, {r.Layout, 2}, {r.DType, 7}, {r.Transport, 4}, {r.Memory, 7}} {
		if word.text != "" {
			fmt.Fprintf(&b, "  %-*s", word.width, word.text)
		}
	}
	for _, n := range []struct {
		n    int
		unit string
	}{{r.Ranks, "ranks"}, {r.Threads, "threads"}, {r.Clients, "clients"}, {r.Connections, "connections"}} {
		if n.n == 1 {
			n.unit = strings.TrimSuffix(n.unit, "s") + " "
		}
		if n.n > 0 {
			fmt.Fprintf(&b, "  %2d %s", n.n, n.unit)
		}
	}
	switch {
	case r.Bytes > 0:
		fmt.Fprintf(&b, "  %9s", size(int64(r.Bytes)))
	case r.Bench == "collectives":
		fmt.Fprintf(&b, "  %9s  %9s", "", "")
	}
	fmt.Fprintf(&b, "  median %s", span(r.MedianMicros))
	if r.MinMicros > 0 {
		fmt.Fprintf(&b, "  min %s", span(r.MinMicros))
	}
	if r.P99Micros > 0 {
		fmt.Fprintf(&b, "  p99 %s", span(r.P99Micros))
	}
	if r.GBPerSec > 0 {
		fmt.Fprintf(&b, "  %7.3f GB/s", r.GBPerSec)
	}
	if r.CPUMicros > 0 {
		fmt.Fprintf(&b, "  processor %s", span(r.CPUMicros))
	}
	if r.WaitCPUMicros > 0 {
		fmt.Fprintf(&b, "  waiting took %s of processor time", strings.TrimSpace(span(r.WaitCPUMicros)))
	}
	if r.OpsPerSec > 0 {
		fmt.Fprintf(&b, "  %9.0f a second", r.OpsPerSec)
	}
	if r.CallsPerSec > 0 {
		fmt.Fprintf(&b, "  %9.0f calls a second, %d together", r.CallsPerSec, r.Calls)
	}
	if r.RowsPerSec > 0 {
		fmt.Fprintf(&b, "  %9.0f rows a second", r.RowsPerSec)
	}
	if r.GFlopPerSec > 0 {
		fmt.Fprintf(&b, "  %6.1f GFLOP/s", r.GFlopPerSec)
	}
	if r.PeakRSSBytes > 0 {
		fmt.Fprintf(&b, "  peak memory %s", size(r.PeakRSSBytes))
	}
	if r.Loading != nil {
		r.Loading.writeText(&b)
	}
	if r.Table != nil {
		fmt.Fprintf(&b, "  %d of dim %d on %d servers", r.TableRows, r.Dim, r.Servers)
	}
	if r.Sharding != nil {
		r.Sharding.writeText(&b)
	}
	if r.Saving != nil {
		r.Saving.writeText(&b)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// span prints a time given in microseconds, ten wide.
func span(us float64) string {
	if us >= 1000 {
		return fmt.Sprintf("%7.2f ms", us/1000)
	}
	return fmt.Sprintf("%7.2f µs", us)
}

// size prints a number of bytes.
func size(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	return fmt.Sprintf("%.4g %s", v, unit)
}

// micros returns a duration in microseconds.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// perSecond returns the rate in 10⁹ units a second, to six places, if amount units take
// d.
func perSecond(amount float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return math.Round(amount/d.Seconds()/1e3) / 1e6
}

// times is a set of measured durations.
type times []time.Duration

// quantile returns the duration below which a share q of the set lies.
func (t times) quantile(q float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	s := slices.Clone(t)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func (t times) median() time.Duration { return t.quantile(0.5) }
