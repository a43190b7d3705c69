// SPDX-License-Identifier: Apache-2.0

package fault

import "fmt"

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
