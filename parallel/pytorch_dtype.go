// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// PyTorch's ranks send their tensors' bytes, a dtype after the other, and no word of
// dtypes. What is known of another rank's is the number of bytes.

// PeerDTypeError says that a rank has parameters or buffers in other dtypes than this
// one.
type PeerDTypeError struct {
	Rank  int          // the other rank
	Param string       // the first parameter or buffer that differs, as far as sizes show it
	Here  tensor.DType // that of this rank
	There string       // what the sizes say of the other rank's: "bfloat16 or float16"; "" if nothing
	More  int          // how many others are like it
	Cause error        // with the sizes
}

func (e *PeerDTypeError) Error() string {
	more := ""
	if e.More > 0 {
		more = fmt.Sprintf(" and %d more", e.More)
	}
	there := e.There
	if there == "" {
		there = "of another dtype"
	}
	return fmt.Sprintf("ddp: the dtypes of the ranks' models differ: %s%s: %v here, %s on rank %d; convert the model on one of them: %v", e.Param, more, e.Here, there, e.Rank, e.Cause)
}

func (e *PeerDTypeError) Unwrap() error { return e.Cause }

// floatsOf names the floating dtypes of a size, "" if there are none.
func floatsOf(size int64) string {
	switch size {
	case 2:
		return "bfloat16 or float16"
	case 4:
		return "float32"
	case 8:
		return "float64"
	}
	return ""
}

// sizesDiffer returns of an error who has how many bytes for a message of which this
// rank has want.
func sizesDiffer(err error) (rank int, sent, want int64, ok bool) {
	var of *dist.RankError
	var wire *dist.WireError
	if errors.As(err, &of) && errors.As(err, &wire) && wire.Want > 0 && wire.Bytes > 0 {
		return of.Rank, wire.Bytes, wire.Want, true
	}
	return 0, 0, 0, false
}

// otherDTypes makes an error of a broadcast one of dtypes, if another rank has
// another number of bytes in its run and other dtypes explain it.
func (c *coalesced) otherDTypes(run int, err error) error {
	rank, sent, _, ok := sizesDiffer(err)
	if !ok {
		return err
	}
	found := func(k []int, there string) error {
		return &PeerDTypeError{Rank: rank, Param: c.names[k[0]], Here: c.tensors[k[0]].DType(), There: there, More: len(k) - 1, Cause: err}
	}
	mine, left := c.runs[run], slices.Concat(c.runs[run:]...)
	own := c.tensors[mine[0]].DType()
	size := int64(own.Size())
	// The other rank's run begins with the same tensor, which it may have in another
	// dtype: with all, with others of its kind, or with those that follow.
	kinds, first := [][]int{left, mine, c.ofDims(left, mine[0]), c.ofModules(left, mine[0])}, [][]int{}
	for n := range left {
		first = append(first, left[:n+1])
	}
	for _, try := range []struct {
		sets  [][]int
		there []int64
	}{{kinds, []int64{2, 4, 8}}, {first, []int64{2}}} {
		for _, there := range try.there {
			for _, set := range try.sets {
				if there != size && c.numElems(set)*there == sent {
					return found(set, floatsOf(there))
				}
			}
		}
	}
	// Or it has fewer tensors of this dtype, or more.
	for i, k := range mine[1:] {
		for _, set := range [][]int{{k}, c.ofDims(mine, k), c.ofModules(mine, k), mine[i+1:]} {
			if (c.numElems(mine)-c.numElems(set))*size == sent {
				return found(set, "")
			}
		}
	}
	for _, k := range left {
		if d := c.tensors[k].DType(); d != own && (c.numElems(mine)+c.numElems([]int{k}))*size == sent {
			return found([]int{k}, own.String())
		}
	}
	return fmt.Errorf("%w; or do dtypes differ? %s is %v here, and %d of %d tensors are", err, c.names[mine[0]], own, len(mine), len(c.tensors))
}

// numElems returns how many elements some of the tensors have.
func (c *coalesced) numElems(of []int) (n int64) {
	for _, k := range of {
		n += int64(c.tensors[k].NumElems())
	}
	return n
}

// ofDims returns those of the tensors that are vectors, or those that are not, as
// tensor like is: which of the two is converted goes by that often.
func (c *coalesced) ofDims(of []int, like int) (out []int) {
	for _, k := range of {
		if (c.tensors[k].NumDims() > 1) == (c.tensors[like].NumDims() > 1) {
			out = append(out, k)
		}
	}
	return out
}

// ofModules returns those of the tensors whose module has a matrix, or those whose
// module has none, as that of tensor like is: norms are often left as they are.
func (c *coalesced) ofModules(of []int, like int) (out []int) {
	matrices := map[string]bool{}
	module := func(k int) string { return c.names[k][:max(0, strings.LastIndexByte(c.names[k], '.'))] }
	for k, t := range c.tensors {
		if t.NumDims() > 1 {
			matrices[module(k)] = true
		}
	}
	for _, k := range of {
		if matrices[module(k)] == matrices[module(like)] {
			out = append(out, k)
		}
	}
	return out
}

// misread returns an error if what rank src has sent as one of the dtypes of two bytes
// is the other one: no sizes tell them apart, but the numbers do where they are weights
// and not few.
func (c *coalesced) misread(src int) error {
	for _, run := range c.runs {
		own := c.tensors[run[0]].DType()
		if own != tensor.BFloat16 && own != tensor.Float16 {
			continue
		}
		odd, all, negative := 0, 0, 0
		for _, k := range run {
			for _, v := range c.tensors[k].Float32s() {
				if v < 0 {
					negative++
				}
				switch v := abs32(v); {
				case v == 0:
					continue
				// A number below ¼ in float16 is this small read as bfloat16.
				case own == tensor.BFloat16 && v < 1e-7:
					odd++
				// All of bfloat16 from 2⁻¹⁶ to 16 are in this range read as float16. So are
				// the factors of norms, which have one sign.
				case own == tensor.Float16 && v >= 0.25 && v < 4:
					odd++
				}
				all++
			}
		}
		there, limit := tensor.Float16, 0.1
		if own == tensor.Float16 {
			there, limit = tensor.BFloat16, 0.999
		}
		if all >= 64 && float64(odd) >= limit*float64(all) && 16*min(negative, all-negative) >= all {
			return &PeerDTypeError{Rank: src, Param: c.names[run[0]], Here: own, There: there.String(), More: len(run) - 1,
				Cause: fmt.Errorf("%d of %d numbers that it sent for them are no weights in %v", odd, all, own)}
		}
	}
	return nil
}

func abs32(x float32) float32 { return max(x, -x) }

// otherDTypesOf is otherDTypes of a bucket of gradients, of which a message may be a
// part.
func otherDTypesOf(params []*nn.Parameter, err error) error {
	rank, sent, want, ok := sizesDiffer(err)
	if !ok {
		return err
	}
	own := params[0].Data().DType()
	size := sent * int64(own.Size()) / want
	if there := floatsOf(size); there != "" && size*want == sent*int64(own.Size()) {
		return &PeerDTypeError{Rank: rank, Param: params[0].Name(), Here: own, There: there, More: len(params) - 1, Cause: err}
	}
	return err
}
