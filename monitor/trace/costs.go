// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxCosts bounds the rows of the table.
const MaxCosts = 256

// Cost is what an operation of a module has cost, in all traced steps of all ranks together.
type Cost struct {
	Module   string  `json:"module"`
	Op       string  `json:"op"`
	Backward bool    `json:"backward"`
	Calls    int     `json:"calls"`
	Seconds  float64 `json:"seconds"`
	Share    float64 `json:"share"` // of the time of the steps
	FLOPs    int64   `json:"flops"` // floating-point operations of products
	Bytes    int64   `json:"bytes"` // of the operands
	// Roofline is which share of the time the machine needs at best: for the operations, or for moving the
	// operands, if that takes longer. 0 is not known. What lies in a cache may be faster: 1 then.
	Roofline float64 `json:"roofline"`
}

// costKey is what a row of the table is about.
type costKey struct {
	module, op string
	backward   bool
}

// costsOf returns the table of parts, the costliest operation first.
func costsOf(parts []part) []Cost {
	rows, best := map[costKey]*Cost{}, map[costKey]float64{}
	total := 0.0
	for _, p := range parts {
		for _, s := range p.Steps {
			total += (s.Ended - s.Begun).Seconds()
		}
		for _, o := range p.Ops {
			key := costKey{o.Module, o.Name, o.Backward}
			c := rows[key]
			if c == nil {
				c = &Cost{Module: o.Module, Op: o.Name, Backward: o.Backward}
				rows[key] = c
			}
			c.Calls++
			c.Seconds += (o.Ended - o.Begun).Seconds()
			c.FLOPs += o.FLOPs
			c.Bytes += o.Bytes
			if p.FLOPs > 0 && p.Bytes > 0 {
				best[key] += max(float64(o.FLOPs)/p.FLOPs, float64(o.Bytes)/p.Bytes)
			}
		}
	}
	out := make([]Cost, 0, len(rows))
	for key, c := range rows {
		if c.Seconds > 0 {
			c.Roofline = min(1, best[key]/c.Seconds)
		}
		if total > 0 {
			c.Share = c.Seconds / total
		}
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Cost) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Module, b.Module), cmp.Compare(a.Op, b.Op))
	})
	return out[:min(len(out), MaxCosts)]
}

// Table returns the costliest operations as lines of text.
func (t *Trace) Table(rows int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6s %10s %8s %12s %10s %9s  %s", "share", "time", "calls", "GFLOP/s", "GB/s", "roofline", "operation of module")
	for _, c := range t.Costs[:min(rows, len(t.Costs))] {
		module, way := c.Module, ""
		if module == "" {
			module = "no module"
		}
		if c.Backward {
			way = ", backward"
		}
		roofline := "-"
		if c.Roofline > 0 {
			roofline = fmt.Sprintf("%.0f %%", 100*c.Roofline)
		}
		each := max(c.Seconds, 1e-9)
		fmt.Fprintf(&b, "\n%4.1f %% %10s %8d %12.4g %10.4g %9s  %s of %s%s", 100*c.Share, time.Duration(c.Seconds*1e9).Round(10*time.Microsecond), c.Calls,
			float64(c.FLOPs)/each/1e9, float64(c.Bytes)/each/1e9, roofline, c.Op, module, way)
	}
	return b.String()
}
