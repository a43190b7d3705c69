// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/cohort-ml/cohort/internal/device"
)

// Kernels check indices while they run, and note the first bad one as a fault of
// the device. A device that computes at once has the fault when the call returns:
// the operation panics. A device that computes later has it at some time: it is
// reported, with the place of the call, by the next read of a value, by the end of
// the next Backward, or by Synchronize.

// Synchronize waits until a device has done everything that it was asked to do, and
// returns what went wrong there since it was last asked: an [*Error] that names the
// operation, the element and the line of the call. The CPU computes at once, and its
// operations panic with such an error themselves.
//
// A fault is the device's, and is told once, to whoever asks first. Goroutines that
// share a device that computes later therefore end together: what one of them has
// called after the fault of another may have been left out.
func Synchronize(dev Device) error {
	if err := deviceFault(dev, true); err != nil {
		return err
	}
	return nil
}

// verify runs an operation that checks elements of operands, and fails with what say
// makes of a fault. say is kept for as long as a late device may meet the fault: it
// holds on to numbers, and to no tensor, whose memory it would keep.
func verify(op string, operands []*Tensor, say func(f device.Fault) string, run func(c *device.Check)) {
	c := &device.Check{}
	if operands[0].Device().Late() {
		c.Site = sites.add(NewError(op, operands, ""), say)
	}
	run(c)
	if c.Fault.Found {
		fail(op, operands, "%s", say(c.Fault))
	}
}

// deviceFault returns the fault that a device has noted, nil for none. With wait all
// calls so far have been done.
func deviceFault(dev Device, wait bool) *Error {
	f := dev.Fault(wait)
	if !f.Found {
		return nil
	}
	if s := sites.get(f.Site); s != nil {
		err := *s.err
		err.Msg, err.Late = s.say(f), true
		return &err
	}
	return &Error{Op: f.Op, Msg: fmt.Sprintf("element %d, %d, is out of range", f.Position, f.Value), Late: true}
}

// sites are the latest calls whose faults may come later. A device is asked often
// enough that older ones have been done.
var sites siteTable

type siteTable struct {
	next atomic.Uint64
	ring [1 << 12]atomic.Pointer[site]
}

// site is a call: its error without the message, and who writes the message.
type site struct {
	number uint64
	err    *Error
	say    func(f device.Fault) string
}

func (t *siteTable) add(err *Error, say func(f device.Fault) string) uint64 {
	n := t.next.Add(1)
	t.ring[n%uint64(len(t.ring))].Store(&site{n, err, say})
	return n
}

func (t *siteTable) get(n uint64) *site {
	if s := t.ring[n%uint64(len(t.ring))].Load(); s != nil && s.number == n {
		return s
	}
	return nil
}

// faultNumber is the value of a fault about a floating element.
func faultNumber(f device.Fault) float64 { return math.Float64frombits(uint64(f.Value)) }

// positionIn turns a place in row-major order into indices.
func positionIn(shape []int, at int) []int {
	position := make([]int, len(shape))
	for d := len(position) - 1; d >= 0; d-- {
		position[d], at = at%shape[d], at/shape[d]
	}
	return position
}
