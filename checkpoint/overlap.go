// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// errTangled is for boxes that nobody cuts a tensor into, and that would take too long to
// compare.
var errTangled = errors.New("whose boxes are too tangled to be checked: save it again")

// overlaps finds boxes with an element in common. Boxes that a mesh has cut form a grid: along
// each dim two of them cover the same elements or none in common. So boxes are parted along one
// dim after the other, until none has a neighbour left that it could meet.
type overlaps struct {
	work int // comparisons that are left
}

// checkOverlap reports two boxes with an element in common.
func (t StoredTensor) checkOverlap() error {
	boxes := make([]*StoredBox, 0, len(t.Boxes))
	for i := range t.Boxes {
		if !isEmpty(t.Boxes[i].Shape) {
			boxes = append(boxes, &t.Boxes[i])
		}
	}
	n := len(boxes)
	o := &overlaps{work: 1<<20 + 4*n*(1+len(t.Shape))*(1+bits.Len(uint(n)))}
	return o.part(boxes, 0, 0)
}

// part parts boxes along a dim, and the parts along the next one. tried is along how many dims
// these boxes could not be parted.
func (o *overlaps) part(boxes []*StoredBox, dim, tried int) error {
	if len(boxes) < 2 {
		return nil
	}
	numDims := len(boxes[0].Start)
	if tried == numDims {
		return o.compare(boxes)
	}
	if o.work -= len(boxes) * bits.Len(uint(len(boxes))); o.work < 0 {
		return errTangled
	}
	slices.SortFunc(boxes, func(a, b *StoredBox) int { return cmp.Compare(a.Start[dim], b.Start[dim]) })
	next := (dim + 1) % numDims
	first, end := 0, boxes[0].Start[dim]+boxes[0].Shape[dim]
	for i, b := range boxes {
		if b.Start[dim] >= end && i > 0 { // none before it reaches it
			if err := o.part(boxes[first:i], next, 0); err != nil {
				return err
			}
			first = i
		}
		end = max(end, b.Start[dim]+b.Shape[dim])
	}
	if first == 0 {
		return o.part(boxes, next, tried+1)
	}
	return o.part(boxes[first:], next, 0)
}

// compare compares each box with each other one.
func (o *overlaps) compare(boxes []*StoredBox) error {
	for i, a := range boxes {
		if o.work -= i; o.work < 0 {
			return errTangled
		}
		for _, b := range boxes[:i] {
			if meet(a, b) {
				return fmt.Errorf("whose boxes overlap: start %v, shape %v and start %v, shape %v", b.Start, b.Shape, a.Start, a.Shape)
			}
		}
	}
	return nil
}

// meet reports whether two boxes have an element in common.
func meet(a, b *StoredBox) bool {
	for d := range a.Start {
		if a.Start[d] >= b.Start[d]+b.Shape[d] || b.Start[d] >= a.Start[d]+a.Shape[d] {
			return false
		}
	}
	return true
}
