// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Release is the version of PyTorch that a job's other ranks run, as far as that matters:
// 100 times the major number and the minor one.
type Release int

const (
	anyRelease  Release = 0   // not said: it is found out
	Release1_13 Release = 113 // the last of 1, which differs from those of 2 in most ways
	release2_2  Release = 202 // the first of those that are known of 2
	// release2 is one of 2.2 and later of which no more is known; it counts as the newest.
	release2 Release = 299
)

// From which version on Gloo's ranks have what earlier ones have not.
const (
	scatters       Release = 203 // reduce_scatter_tensor: 2.2 makes a reduce and a scatter of it
	averages       Release = 208 // ReduceOp.AVG
	scattersLists  Release = 208 // reduce_scatter of a list
	scattersAnyhow Release = 209 // reduce_scatter of other things than sums: it was a sum, whatever was asked for
)

func (p Release) String() string {
	switch p {
	case anyRelease:
		return "PyTorch"
	case release2:
		return "PyTorch 2"
	}
	return fmt.Sprintf("PyTorch %d.%d", p/100, p%100)
}

// ParseRelease reads a version as PyTorch prints it.
func ParseRelease(version string) (Release, error) {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	minor = strings.TrimRight(minor, "abcdefghijklmnopqrstuvwxyz+")
	switch n, err := strconv.Atoi(minor); {
	case major == "1" && err == nil && n == 13:
		return Release1_13, nil
	case major == "2" && rest == "":
		return release2, nil
	case major == "2" && err == nil && n >= 2 && n < 99:
		return Release(200 + n), nil
	}
	return anyRelease, fmt.Errorf("no PyTorch %q: there are \"1.13\", and \"2.2\" and later", version)
}

// refuses returns why no PyTorch rank can take part in a call, "" if one can.
func (p Release) refuses(c *operation.Call) string {
	switch c.Op {
	case operation.Send, operation.Recv, operation.Barrier:
		return ""
	case operation.AllGather, operation.Gather, operation.Scatter:
		if c.Parts != nil {
			return "wants parts of one size here"
		}
	}
	if p == Release1_13 {
		switch c.DType {
		case operation.BFloat16, operation.Bool:
			return fmt.Sprintf("has no collectives of %v", c.DType)
		}
		switch {
		case c.Op == operation.ReduceScatter:
			return "has no reduce-scatter"
		case c.Op == operation.AllGather && c.Count == 0:
			return "ends the process at an all-gather of nothing"
		}
	}
	if c.Op == operation.ReduceScatter && p < scatters {
		return "has no reduce-scatter, but two calls in its place"
	}
	if !c.Op.Reduces() {
		return ""
	}
	switch kind := c.Reduce.Kind(); {
	case kind == operation.PremulSum(1).Kind():
		return "has no sum with factors"
	case c.Op == operation.ReduceScatter && kind != operation.Sum && p < scattersAnyhow:
		return fmt.Sprintf("computes the sum in a reduce-scatter, and no %v", c.Reduce)
	case kind != operation.Avg:
	case p < averages:
		return "has no average"
	case !isFloat(c.DType):
		return fmt.Sprintf("has no average of %v", c.DType)
	}
	return ""
}

func isFloat(d operation.DType) bool {
	switch d {
	case operation.Float32, operation.Float64, operation.Float16, operation.BFloat16:
		return true
	}
	return false
}
