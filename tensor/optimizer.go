// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
)

// The operations of this file update tensors in place and are never recorded.
// Each takes a list and does all of it in one pass over memory and one loop
// over the threads. The tensors of an entry are contiguous float32 of one
// shape.
//
// The steps of optimizers multiply the gradient by a scale, a tensor of one
// element; nil is 1. The parameters' device reads it when it runs the step: one of
// another device is copied there first. A scale that is NaN or infinite leaves the
// step out: nothing is written.

// SGDUpdate is one parameter of [SGD]. MomentumBuf is nil without momentum.
type SGDUpdate struct {
	Param, Grad, MomentumBuf *Tensor
	SGDScalars
}

// SGDScalars are the numbers of a step of [SGD]. First says that the momentum
// buffer holds nothing yet. Maximize makes the step climb.
type SGDScalars struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov, First, Maximize            bool
}

// AdamUpdate is one parameter of [Adam] with its moments; MaxExpAvgSq is nil
// without AMSGrad.
type AdamUpdate struct {
	Param, Grad, ExpAvg, ExpAvgSq, MaxExpAvgSq *Tensor
	AdamScalars
}

// AdamScalars are the numbers of a step of [Adam]: Bias1 = 1-Beta1ᵗ and Bias2 =
// 1-Beta2ᵗ at step t, counted from 1. Decoupled weight decay makes it AdamW.
type AdamScalars struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Bias1, Bias2                       float64
	Decoupled, Maximize                bool
}

// AdagradUpdate is one parameter of [Adagrad] with its sum of squared
// gradients.
type AdagradUpdate struct {
	Param, Grad, Sum *Tensor
	AdagradScalars
}

// AdagradScalars are the numbers of a step of [Adagrad]; LR is the decayed one.
type AdagradScalars struct {
	LR, WeightDecay, Eps float64
	Maximize             bool
}

// RMSpropUpdate is one parameter of [RMSprop]. GradAvg is nil unless centered,
// MomentumBuf without momentum.
type RMSpropUpdate struct {
	Param, Grad, SquareAvg, GradAvg, MomentumBuf *Tensor
	RMSpropScalars
}

// RMSpropScalars are the numbers of a step of [RMSprop].
type RMSpropScalars struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Maximize                              bool
}

// A list operation is what [multi] needs to know of an update: its operands, of
// which width count and all but the second (the gradient or source) are written, and
// the numbers that a device gets.
type listOperation[U, N any] struct {
	name     string
	width    int
	operands func(u *U) [5]*Tensor
	numbers  func(u *U) N
	op       func(numbers []N) device.Op
	// scratch keeps lists between calls: a model has hundreds of parameters, and
	// each has operands to describe.
	scratch *sync.Pool
}

type scratch[N any] struct {
	arrays  []device.Array
	numbers []N
}

var sgdOperation = listOperation[SGDUpdate, device.SGDUpdate]{
	name: "sgd", width: 3, scratch: new(sync.Pool),
	operands: func(u *SGDUpdate) [5]*Tensor { return [5]*Tensor{u.Param, u.Grad, u.MomentumBuf} },
	numbers:  func(u *SGDUpdate) device.SGDUpdate { return device.SGDUpdate(u.SGDScalars) },
	op:       func(n []device.SGDUpdate) device.Op { return device.SGD{Updates: n} },
}

var adamOperation = listOperation[AdamUpdate, device.AdamUpdate]{
	name: "adam", width: 5, scratch: new(sync.Pool),
	operands: func(u *AdamUpdate) [5]*Tensor {
		return [5]*Tensor{u.Param, u.Grad, u.ExpAvg, u.ExpAvgSq, u.MaxExpAvgSq}
	},
	numbers: func(u *AdamUpdate) device.AdamUpdate { return device.AdamUpdate(u.AdamScalars) },
	op:      func(n []device.AdamUpdate) device.Op { return device.Adam{Updates: n} },
}

var adagradOperation = listOperation[AdagradUpdate, device.AdagradUpdate]{
	name: "adagrad", width: 3, scratch: new(sync.Pool),
	operands: func(u *AdagradUpdate) [5]*Tensor { return [5]*Tensor{u.Param, u.Grad, u.Sum} },
	numbers:  func(u *AdagradUpdate) device.AdagradUpdate { return device.AdagradUpdate(u.AdagradScalars) },
	op:       func(n []device.AdagradUpdate) device.Op { return device.Adagrad{Updates: n} },
}

var rmspropOperation = listOperation[RMSpropUpdate, device.RMSpropUpdate]{
	name: "rmsprop", width: 5, scratch: new(sync.Pool),
	operands: func(u *RMSpropUpdate) [5]*Tensor {
		return [5]*Tensor{u.Param, u.Grad, u.SquareAvg, u.GradAvg, u.MomentumBuf}
	},
	numbers: func(u *RMSpropUpdate) device.RMSpropUpdate { return device.RMSpropUpdate(u.RMSpropScalars) },
	op:      func(n []device.RMSpropUpdate) device.Op { return device.RMSprop{Updates: n} },
}

// SGD updates parameters by stochastic gradient descent; the arithmetic is
// PyTorch's bit for bit on a CPU with fused multiply-add.
func SGD(updates []SGDUpdate, scale *Tensor) { multi(&sgdOperation, updates, scale, true) }

// Adam updates parameters by Adam (Kingma and Ba 2015, Algorithm 1) or AdamW
// (Loshchilov and Hutter 2019, Algorithm 2), and their moments too.
func Adam(updates []AdamUpdate, scale *Tensor) { multi(&adamOperation, updates, scale, true) }

// Adagrad updates parameters by Adagrad (Duchi, Hazan and Singer 2011), and
// their sums too.
func Adagrad(updates []AdagradUpdate, scale *Tensor) { multi(&adagradOperation, updates, scale, true) }

// RMSprop updates parameters by RMSprop (Tieleman and Hinton 2012; centered:
// Graves 2013), and their averages too.
func RMSprop(updates []RMSpropUpdate, scale *Tensor) { multi(&rmspropOperation, updates, scale, true) }

// pair is an entry of the operations on two lists.
type pair struct{ dst, src *Tensor }

// pairOperation is an operation on pairs.
func pairOperation(op device.Op, dsts, srcs []*Tensor) {
	if len(dsts) != len(srcs) {
		fail(device.OpName(op), nil, "%d destinations and %d sources", len(dsts), len(srcs))
	}
	pairs := make([]pair, len(dsts))
	for i := range pairs {
		pairs[i] = pair{dsts[i], srcs[i]}
	}
	multi(&listOperation[pair, struct{}]{
		name: device.OpName(op), width: 2, scratch: &plainScratch,
		operands: func(u *pair) [5]*Tensor { return [5]*Tensor{u.dst, u.src} },
		numbers:  func(*pair) struct{} { return struct{}{} },
		op:       func([]struct{}) device.Op { return op },
	}, pairs, nil, false)
}

// plainScratch are the lists of operations without numbers of an entry.
var plainScratch sync.Pool

// LerpAll moves each of dsts towards its source by weight, from 0 to 1.
func LerpAll(dsts, srcs []*Tensor, weight float64) {
	pairOperation(device.LerpAll{Weight: weight}, dsts, srcs)
}

// SwapAll exchanges the elements of each of a with those of its partner in b.
func SwapAll(a, b []*Tensor) {
	pairOperation(device.SwapAll{}, a, b)
	written("swap all", b...)
}

// ClampAll bounds the elements of all tensors by -limit and limit. NaN stays.
func ClampAll(ts []*Tensor, limit float64) {
	multi(&listOperation[*Tensor, struct{}]{
		name: "clamp all", width: 1, scratch: &plainScratch,
		operands: func(t **Tensor) [5]*Tensor { return [5]*Tensor{*t} },
		numbers:  func(**Tensor) struct{} { return struct{}{} },
		op:       func([]struct{}) device.Op { return device.ClampAll{Limit: limit} },
	}, ts, nil, false)
}

// ClipScale returns the scale of a step that brings gradients of a norm down to
// maxNorm: min(1, maxNorm/(norm+1e-6)), and NaN for a norm that is not finite. norm
// has one element of a floating dtype; the result is float64 of no dims, on the
// norm's device and under no tape.
func ClipScale(norm *Tensor, maxNorm float64) *Tensor {
	const op = "clip scale"
	present(op, norm)
	if norm.NumElems() != 1 || !norm.dtype.IsFloat() {
		fail(op, []*Tensor{norm}, "wants a norm of one element of a floating dtype")
	}
	norm = norm.detach().To(Float64)
	scale := alloc(nil, norm.Device(), Float64, nil, false)
	fused(device.ClipScale{MaxNorm: maxNorm}, scale, norm)
	return scale
}

// multi does an operation on a list of updates. All operands of an update but
// the second are written; they may be nil. A device gets the operands and
// numbers of all updates one after another and, if the operation has one, the scale
// last.
func multi[U, N any](op *listOperation[U, N], updates []U, scale *Tensor, scaled bool) {
	scale = scaleOperand(op.name, scale)
	s, _ := op.scratch.Get().(*scratch[N])
	if s == nil {
		s = &scratch[N]{}
	}
	for len(updates) > 0 {
		dev := op.operands(&updates[0])[0].Device()
		n := 0
		for ; n < len(updates) && op.operands(&updates[n])[0].Device() == dev; n++ {
			op.add(s, &updates[n])
		}
		updates = updates[n:] // the rest is done after this device's
		if scaled {
			s.arrays = append(s.arrays, scaleArray(scale, dev))
		}
		if !dev.Fused(op.op(s.numbers), s.arrays...) {
			failKernel(op.name, nil, dev)
		}
		clear(s.arrays)
		s.arrays, s.numbers = s.arrays[:0], s.numbers[:0]
	}
	op.scratch.Put(s)
}

// add checks an update and adds it to the lists.
func (op *listOperation[U, N]) add(s *scratch[N], u *U) {
	ts := op.operands(u)
	for j, t := range ts[:op.width] {
		var a device.Array
		if t != nil {
			ts[0].wantSame(op.name, t)
			t.wantDType(op.name, Float32)
			if !t.IsContiguous() {
				fail(op.name, ts[:op.width], "wants contiguous tensors")
			}
			if j != 1 {
				t.wrote(op.name)
			}
			a = t.array()
		}
		s.arrays = append(s.arrays, a)
	}
	s.numbers = append(s.numbers, op.numbers(u))
}

// scaleOperand checks the scale of a step and returns it as float64.
func scaleOperand(op string, scale *Tensor) *Tensor {
	if scale == nil {
		return nil
	}
	if scale.NumElems() != 1 || !scale.dtype.IsFloat() {
		fail(op, []*Tensor{scale}, "wants a scale of one element of a floating dtype")
	}
	return scale.detach().To(Float64)
}

// scaleArray returns the scale as an operand of a device, absent for nil.
func scaleArray(scale *Tensor, dev Device) device.Array {
	if scale == nil {
		return device.Array{}
	}
	return scale.ToDevice(dev).array()
}

// SGDRows is a step of [SGD] for a gradient by rows, without weight decay.
// Without momentum it touches the rows of g alone; with it all rows move, as
// if the gradient were zero elsewhere, and the buffer is zero when s.First.
func SGDRows(param, momentumBuf *Tensor, g RowGrad, s SGDScalars, scale *Tensor) {
	byRows("sgd rows", g, scale, []*Tensor{param, momentumBuf}, func(c *device.Check) device.Op {
		return device.SGDRows{SGDUpdate: device.SGDUpdate(s), Check: c}
	})
}

// AdagradRows is a step of [Adagrad] for the rows of g alone, without weight
// decay.
func AdagradRows(param, sum *Tensor, g RowGrad, s AdagradScalars, scale *Tensor) {
	byRows("adagrad rows", g, scale, []*Tensor{param, sum}, func(c *device.Check) device.Op {
		return device.AdagradRows{AdagradUpdate: device.AdagradUpdate(s), Check: c}
	})
}

// AdamRows is a step of PyTorch's SparseAdam: the rows of g alone, and their
// moments, move. It has no weight decay.
func AdamRows(param, expAvg, expAvgSq *Tensor, g RowGrad, s AdamScalars, scale *Tensor) {
	byRows("adam rows", g, scale, []*Tensor{param, expAvg, expAvgSq}, func(c *device.Check) device.Op {
		return device.AdamRows{AdamUpdate: device.AdamUpdate(s), Check: c}
	})
}

// byRows checks a gradient against the table that is ts[0] and does a step with
// both; ts are of one shape [rows, width] and all written.
func byRows(name string, g RowGrad, scale *Tensor, ts []*Tensor, op func(c *device.Check) device.Op) {
	if scale = scaleOperand(name, scale); scale != nil {
		scale = scale.ToDevice(ts[0].Device())
	}
	table, operands := ts[0], append(ts[:len(ts):len(ts)], g.Rows, g.IDs)
	for _, t := range ts {
		if t != nil {
			table.wantSame(name, t)
			wantContiguous(name, t)
			written(name, t)
		}
	}
	wantContiguous(name, g.Rows)
	n := g.IDs.NumElems()
	if len(table.shape) != 2 || len(g.Rows.shape) != 2 || g.Rows.shape[0] != n || g.Rows.shape[1] != table.shape[1] || g.NumRows != table.shape[0] {
		fail(name, operands, "wants a table [%d, width], %d rows of its width", g.NumRows, n)
	}
	ids := indices(name, operands, g.IDs)
	numRows := g.NumRows
	verify(name, operands, func(f device.Fault) string {
		return fmt.Sprintf("row %d of the gradient is of row %d of the table: ids must increase, and be less than %d", f.Position, f.Value, numRows)
	}, func(c *device.Check) {
		fused(op(c), append(ts[:len(ts):len(ts)], g.Rows, ids, scale)...)
	})
}

func wantContiguous(op string, ts ...*Tensor) {
	for _, t := range ts {
		t.wantDType(op, Float32)
		if !t.IsContiguous() {
			fail(op, ts, "wants contiguous tensors")
		}
	}
}

func written(op string, ts ...*Tensor) {
	for _, t := range ts {
		t.wrote(op)
	}
}
