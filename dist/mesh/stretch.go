// SPDX-License-Identifier: Apache-2.0

package mesh

import "github.com/cohort-ml/cohort/tensor"

// extents returns the shape of a local tensor.
func extents(spans [][]span) []int {
	shape := make([]int, len(spans))
	for d, ss := range spans {
		for _, s := range ss {
			shape[d] += s.length
		}
	}
	return shape
}

// commonParts returns for each dim what two ranks' parts have in common.
func commonParts(a, b [][]span) [][]stretch {
	parts := make([][]stretch, len(a))
	for d := range a {
		parts[d] = common(a[d], b[d])
	}
	return parts
}

// isOnePlace reports whether the stretches of all dims are one box, or none.
func isOnePlace(parts [][]stretch) bool {
	one := true
	for _, ss := range parts {
		if len(ss) == 0 {
			return true
		}
		one = one && len(ss) == 1
	}
	return one
}

// take returns the part of local that lies at the stretches' a, packed in order: a view if it is
// one box.
func take(local *tensor.Tensor, parts [][]stretch) *tensor.Tensor {
	if view := boxAt(local, parts, true); view != nil {
		return view
	}
	out := tensor.New(local.Device(), local.DType(), lengths(parts)...)
	move(out, local, parts, true)
	return out
}

// place returns where to write what goes to the stretches' b of out: a view of out if they are
// one box, and otherwise new memory, from which put takes it.
func place(out *tensor.Tensor, parts [][]stretch) *tensor.Tensor {
	if view := boxAt(out, parts, false); view != nil {
		return view
	}
	return tensor.New(out.Device(), out.DType(), lengths(parts)...)
}

// put writes what lies packed in values to the stretches' b of out.
func put(out *tensor.Tensor, parts [][]stretch, values *tensor.Tensor) {
	move(values, out, parts, false)
}

// lengths returns the shape of the packed stretches.
func lengths(parts [][]stretch) []int {
	shape := make([]int, len(parts))
	for d, ss := range parts {
		for _, s := range ss {
			shape[d] += s.length
		}
	}
	return shape
}

// boxAt returns the view of t at the stretches if they are one box, or none, and nil otherwise.
func boxAt(t *tensor.Tensor, parts [][]stretch, atA bool) *tensor.Tensor {
	if !isOnePlace(parts) {
		return nil
	}
	for d, ss := range parts {
		start, length := 0, 0
		if len(ss) > 0 {
			start, length = ss[0].at(atA), ss[0].length
		}
		t = t.Narrow(d, start, length)
	}
	return t
}

func (s stretch) at(atA bool) int {
	if atA {
		return s.a
	}
	return s.b
}

// move copies between packed values and the stretches of a spread tensor: into packed if atA is
// set, and out of it otherwise.
func move(packed, spread *tensor.Tensor, parts [][]stretch, atA bool) {
	for _, ss := range parts {
		if len(ss) == 0 {
			return
		}
	}
	numBoxes := 1
	for _, ss := range parts {
		numBoxes *= len(ss)
	}
	starts := make([][]int, len(parts)) // of the stretches in packed
	for d, ss := range parts {
		at := 0
		for _, s := range ss {
			starts[d] = append(starts[d], at)
			at += s.length
		}
	}
	for i := range numBoxes {
		from, to := packed, spread
		at := i
		for d := len(parts) - 1; d >= 0; d-- {
			k := at % len(parts[d])
			at /= len(parts[d])
			s := parts[d][k]
			from, to = from.Narrow(d, starts[d][k], s.length), to.Narrow(d, s.at(atA), s.length)
		}
		if atA {
			from, to = to, from
		}
		to.CopyFrom(from)
	}
}
