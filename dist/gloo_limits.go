// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"

	"github.com/cohort-ml/cohort/dist/operation"
)

// PyTorchError says that a group with PyTorch members was asked for something
// that the Gloo of their PyTorch does not have, so that no PyTorch rank could
// have called it. Nothing was sent: the group is as it was.
type PyTorchError struct {
	Group   string // the group's name
	Rank    int    // this rank's number in it
	Op      string // what was called, "reduce_scatter"
	PyTorch string // whose limit it is, "PyTorch 1.13", and what that was taken from if it is a guess
	Reason  string // what it does not have
}

func (e *PyTorchError) Error() string {
	return fmt.Sprintf("dist: %s of group %q on rank %d: the Gloo of %s %s", e.Op, e.Group, e.Rank, e.PyTorch, e.Reason)
}

// refuses returns why no PyTorch rank can take part in a call, "" if one can.
func (p pytorch) refuses(c *operation.Call) string {
	switch c.Op {
	case operation.Send, operation.Recv, operation.Barrier:
		return ""
	case operation.AllGather, operation.Gather, operation.Scatter:
		if c.Parts != nil {
			return "wants parts of one size here"
		}
	}
	if p == pytorch1_13 {
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
	case kind == PremulSum(1).Kind():
		return "has no sum with factors"
	case c.Op == operation.ReduceScatter && kind != Sum && p < scattersAnyhow:
		return fmt.Sprintf("computes the sum in a reduce-scatter, and no %v", c.Reduce)
	case kind != Avg:
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

// admits returns an error if a call cannot be made on a group with PyTorch
// members. Other groups make all calls: j is nil there.
func (j *glooJob) admits(g *Group, c *operation.Call) error {
	if j == nil {
		return nil
	}
	if reason := j.pytorch.refuses(c); reason != "" {
		return j.unsupported(g, c.Op.String(), reason)
	}
	return nil
}

func (j *glooJob) unsupported(g *Group, op, reason string) *PyTorchError {
	version := j.pytorch.String()
	if j.guess != "" {
		version += " (its store is that of " + j.guess + ": dist.WithPyTorch says which it is)"
	}
	return &PyTorchError{Group: g.name, Rank: g.rank, Op: op, PyTorch: version, Reason: reason}
}
