// SPDX-License-Identifier: Apache-2.0

package fault

import "fmt"

// DeviceError says that a tensor is on a device whose memory no backend of the group moves.
// Nothing was sent: the group is as it was.
type DeviceError struct {
	Group   string
	Rank    int    // this rank's number in it
	Op      string // what was called, "all_reduce"
	Tensor  string // which of its tensors, "source 1"
	Device  string // where that is
	Backend string // the group's backend for the memory of the host
}

func (e *DeviceError) Error() string {
	return fmt.Sprintf("dist: %s of group %q on rank %d: %s is on device %s, and the group's backend %q moves the memory of the host: copy the tensor by ToDevice(tensor.CPU()), or give Init a backend for that device by WithBackend",
		e.Op, e.Group, e.Rank, e.Tensor, e.Device, e.Backend)
}
