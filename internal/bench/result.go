// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"time"
)

// Result is one measured case. Fields that do not apply are left out.
type Result struct {
	Bench        string  `json:"bench"`
	Case         string  `json:"case"`
	Backend      string  `json:"backend,omitempty"`
	Transport    string  `json:"transport,omitempty"`
	Memory       string  `json:"memory,omitempty"` // of the tensors: "shared" or "private"
	DType        string  `json:"dtype,omitempty"`
	Ranks        int     `json:"ranks,omitempty"`
	Threads      int     `json:"threads,omitempty"`
	Bytes        int     `json:"bytes,omitempty"`
	Params       int     `json:"params,omitempty"`
	MedianMicros float64 `json:"median_us"`
	MinMicros    float64 `json:"min_us,omitempty"`
	P99Micros    float64 `json:"p99_us,omitempty"`
	GBPerSec     float64 `json:"gb_per_s,omitempty"`
	GFlopPerSec  float64 `json:"gflop_per_s,omitempty"`
	// PeakRSSBytes is the most memory the process has had; GrowthBytes is
	// that less what it had before the case began.
	PeakRSSBytes int64 `json:"peak_rss_bytes,omitempty"`
	GrowthBytes  int64 `json:"growth_bytes,omitempty"`
}

// micros returns a duration in microseconds.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

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
