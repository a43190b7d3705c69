// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/internal/collective"
)

// pytorch is which PyTorch a job's other ranks run, as far as that matters.
type pytorch int

const (
	pytorchAny  pytorch = iota // not said: it is found out
	pytorch1_13                // 1.13
	pytorch2                   // 2.2 and later
)

func (p pytorch) String() string {
	switch p {
	case pytorch1_13:
		return "PyTorch 1.13"
	case pytorch2:
		return "PyTorch 2"
	}
	return "PyTorch"
}

// parsePyTorch reads a version as PyTorch prints it.
func parsePyTorch(version string) (pytorch, error) {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	minor = strings.TrimRight(minor, "abcdefghijklmnopqrstuvwxyz+")
	if n, err := strconv.Atoi(minor); major == "1" && err == nil && n == 13 {
		return pytorch1_13, nil
	} else if major == "2" && (rest == "" || err == nil && n >= 2) {
		return pytorch2, nil
	}
	return pytorchAny, fmt.Errorf("no PyTorch %q: there are \"1.13\", and \"2.2\" and later", version)
}

// WithPyTorch says which PyTorch the other ranks of a job with the backend
// "gloo" run, as torch.__version__ says it: "1.13.1", "2.6.0". It is seldom
// needed: who connects to a store finds out, a rank 0 that serves one waits
// to hear what the others speak, and in other stores is seen what they put there.
func WithPyTorch(version string) Option {
	return func(o *options) (err error) {
		if o.pytorch, err = parsePyTorch(version); err != nil {
			return fmt.Errorf("WithPyTorch: %w", err)
		}
		return o.onlyInit("WithPyTorch")
	}
}

// PyTorchError says that a group with PyTorch members was asked for something
// that the Gloo of their PyTorch does not have, so that no PyTorch rank could
// have called it. Nothing was sent: the group is as it was.
type PyTorchError struct {
	Group   string // the group's name
	Rank    int    // this rank's number in it
	Op      string // what was called, "reduce_scatter"
	PyTorch string // whose limit it is, "PyTorch 1.13"
	Reason  string // what it does not have
}

func (e *PyTorchError) Error() string {
	return fmt.Sprintf("dist: %s of group %q on rank %d: the Gloo of %s %s", e.Op, e.Group, e.Rank, e.PyTorch, e.Reason)
}

// refuses returns why no PyTorch rank can take part in a call, "" if one can.
func (p pytorch) refuses(c *collective.Call) string {
	switch c.Op {
	case collective.OpSend, collective.OpRecv, collective.OpBarrier:
		return ""
	case collective.OpAllGather, collective.OpGather, collective.OpScatter:
		if c.Parts != nil {
			return "wants parts of one size here"
		}
	}
	if p == pytorch1_13 {
		switch c.DType {
		case collective.BFloat16, collective.Bool:
			return fmt.Sprintf("has no collectives of %v", c.DType)
		}
		switch {
		case c.Op == collective.OpReduceScatter:
			return "has no reduce-scatter"
		case c.Op == collective.OpAllGather && c.Count == 0:
			return "ends the process at an all-gather of nothing"
		}
	}
	if !c.Op.Reduces() {
		return ""
	}
	switch kind := c.Reduce.Kind(); {
	case kind == PremulSum(1).Kind():
		return "has no sum with factors"
	case kind != Avg:
	case p == pytorch1_13:
		return "has no average"
	case !isFloat(c.DType):
		return fmt.Sprintf("has no average of %v", c.DType)
	}
	return ""
}

func isFloat(d collective.DType) bool {
	switch d {
	case collective.Float32, collective.Float64, collective.Float16, collective.BFloat16:
		return true
	}
	return false
}

// admits returns an error if a call cannot be made on a group with PyTorch
// members. Other groups make all calls: j is nil there.
func (j *glooJob) admits(g *Group, c *collective.Call) error {
	if j == nil {
		return nil
	}
	if reason := j.pytorch.refuses(c); reason != "" {
		return j.unsupported(g, c.Op.String(), reason)
	}
	return nil
}

func (j *glooJob) unsupported(g *Group, op, reason string) *PyTorchError {
	return &PyTorchError{Group: g.name, Rank: g.rank, Op: op, PyTorch: j.pytorch.String(), Reason: reason}
}
