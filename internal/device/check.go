// SPDX-License-Identifier: Apache-2.0

package device

import "slices"

// Check is how an operation that looks at indices or values reports a bad one.
// Kernels give no value back: they note the fault, leave the bad element out and
// go on. A device that has done the call when it returns writes Fault; one that
// runs it later keeps the first fault of all calls for its method Fault.
type Check struct {
	Site  uint64 // who made the call, a number of the caller's; 0 for nobody
	Fault Fault
}

// Fault is a bad index or value that a kernel met.
type Fault struct {
	Op       string // name of the operation
	Site     uint64 // of its [Check]
	Position int    // of the element, in row-major order
	Value    int64  // the element: an index, or the bits of a float64
	Found    bool   // there is a fault
}

// Note keeps a fault, unless there is an earlier one. A nil check notes nothing:
// what the call works on has been checked before.
func (c *Check) Note(op string, position int, value int64) {
	if c != nil && !c.Fault.Found {
		c.Fault = Fault{op, c.Site, position, value, true}
	}
}

// copied returns a check of the same site for a call that is run later.
func (c *Check) copied() *Check {
	if c == nil {
		return nil
	}
	return &Check{Site: c.Site}
}

func (o ClassTargets) check() *Check       { return o.Check }
func (o Probabilities) check() *Check      { return o.Check }
func (o CheckIndices) check() *Check       { return o.Check }
func (o EmbeddingBagBounds) check() *Check { return o.Check }
func (o GroupRows) check() *Check          { return o.Check }
func (o GroupedProduct) check() *Check     { return o.Check }
func (o SGDRows) check() *Check            { return o.Check }
func (o AdagradRows) check() *Check        { return o.Check }
func (o AdamRows) check() *Check           { return o.Check }

func (o ClassTargets) copied() Op       { o.Check = o.Check.copied(); return o }
func (o Probabilities) copied() Op      { o.Check = o.Check.copied(); return o }
func (o CheckIndices) copied() Op       { o.Check = o.Check.copied(); return o }
func (o EmbeddingBagBounds) copied() Op { o.Check = o.Check.copied(); return o }
func (o GroupRows) copied() Op          { o.Check = o.Check.copied(); return o }
func (o GroupedProduct) copied() Op     { o.Check = o.Check.copied(); return o }
func (o SGDRows) copied() Op            { o.Check = o.Check.copied(); return o }
func (o AdagradRows) copied() Op        { o.Check = o.Check.copied(); return o }
func (o AdamRows) copied() Op           { o.Check = o.Check.copied(); return o }

func (o SGD) copied() Op     { o.Updates = slices.Clone(o.Updates); return o }
func (o Adam) copied() Op    { o.Updates = slices.Clone(o.Updates); return o }
func (o Adagrad) copied() Op { o.Updates = slices.Clone(o.Updates); return o }
func (o RMSprop) copied() Op { o.Updates = slices.Clone(o.Updates); return o }
