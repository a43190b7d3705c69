// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// gridOf cuts a tensor at the given places of each dim, in a random order.
func gridOf(r *rand.Rand, ends ...[]int) StoredTensor {
	t := StoredTensor{DType: safetensors.U8, Boxes: []StoredBox{{}}}
	for _, cuts := range ends {
		var more []StoredBox
		for _, b := range t.Boxes {
			start := 0
			for _, end := range cuts {
				more = append(more, StoredBox{Start: append(b.Start[:len(b.Start):len(b.Start)], start), Shape: append(b.Shape[:len(b.Shape):len(b.Shape)], end-start)})
				start = end
			}
		}
		t.Boxes, t.Shape = more, append(t.Shape, cuts[len(cuts)-1])
	}
	r.Shuffle(len(t.Boxes), func(i, j int) { t.Boxes[i], t.Boxes[j] = t.Boxes[j], t.Boxes[i] })
	return t
}

// TestOverlap: boxes overlap if each compared with each other says so.
func TestOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	numMeeting := 0
	for range 3000 {
		var ends [][]int
		for range 1 + r.IntN(3) {
			var cuts []int
			at := 0
			for range 1 + r.IntN(5) {
				at += r.IntN(4)
				cuts = append(cuts, at)
			}
			ends = append(ends, cuts)
		}
		s := gridOf(r, ends...)
		for range r.IntN(3) { // one box grows or moves
			b := &s.Boxes[r.IntN(len(s.Boxes))]
			d := r.IntN(len(b.Start))
			if b.Start = append([]int(nil), b.Start...); r.IntN(2) == 0 {
				b.Start[d] += r.IntN(3)
			} else {
				b.Shape[d] += r.IntN(3)
			}
		}
		want := false
		for i := range s.Boxes {
			for j := range i {
				want = want || !isEmpty(s.Boxes[i].Shape) && !isEmpty(s.Boxes[j].Shape) && meet(&s.Boxes[i], &s.Boxes[j])
			}
		}
		if want {
			numMeeting++
		}
		if err := s.checkOverlap(); (err != nil) != want || err != nil && !strings.Contains(err.Error(), "overlap") {
			t.Fatalf("%+v: %v, want %v", s.Boxes, err, want)
		}
	}
	if numMeeting < 300 {
		t.Errorf("only %d of 3000 had boxes that overlap", numMeeting)
	}
}

// TestOverlapWork: what a mesh cuts is checked fast, however many boxes there are. What somebody
// made up to take long is refused.
func TestOverlapWork(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	n := 200
	if testing.Short() {
		n = 100
	}
	cuts := make([]int, n)
	for i := range cuts {
		cuts[i] = 3 * (i + 1)
	}
	for what, s := range map[string]StoredTensor{"a grid": gridOf(r, cuts, cuts), "rows": gridOf(r, cuts, []int{7}), "three dims": gridOf(r, cuts[:20], cuts[:20], cuts[:20])} {
		if err := s.checkOverlap(); err != nil {
			t.Errorf("%s of %d boxes: %v", what, len(s.Boxes), err)
		}
	}
	// Stairs: along the first dim all boxes meet, along the second none do.
	var stairs StoredTensor
	for i := range n * n {
		stairs.Boxes = append(stairs.Boxes, StoredBox{Start: []int{i, i}, Shape: []int{n * n, 1}})
	}
	if err := stairs.checkOverlap(); err != nil {
		t.Errorf("stairs: %v", err)
	}
	// Four boxes around a fifth cannot be parted along any dim. Many such wheels within each other
	// can only be compared.
	var wheels StoredTensor
	const size = 1 << 20
	for i := range n * n / 4 {
		a, b := i, size-i
		for _, box := range [][4]int{{a, a, 1, b - a - 1}, {a, b - 1, b - a - 1, 1}, {b - 1, a + 1, 1, b - a - 1}, {a + 1, a, b - a - 1, 1}} {
			wheels.Boxes = append(wheels.Boxes, StoredBox{Start: []int{box[0], box[1]}, Shape: []int{box[2], box[3]}})
		}
	}
	if err := wheels.checkOverlap(); !testing.Short() && !errors.Is(err, errTangled) {
		t.Errorf("wheels of %d boxes: %v", len(wheels.Boxes), err)
	}
}
