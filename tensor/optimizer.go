// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// The operations of this file update tensors in place and are never recorded.
// Each takes a list and does all of it in one pass over memory and one loop
// over the threads. The tensors of an entry are contiguous float32 of one
// shape.
//
// The steps of optimizers multiply the gradient by a scale, a tensor of one
// element on the parameters' device; nil is 1. The device reads it when it runs
// the step. A scale that is NaN or infinite leaves the step out: nothing is
// written.

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

// An operation is what [multi] needs to know: its name, how many operands an
// update has, which of the five are written (all but the gradient or source),
// and its kernel.
type operation[U, K any] struct {
	name     string
	operands func(u *U) [5]*Tensor
	width    int
	scalars  func(u *U, to []float64) []float64
	item     func(u *U, a [5][]float32, scale float64) K
	run      func(p *work.Pool, items []K)
	// scratch keeps lists between calls: a model has hundreds of parameters,
	// and each has operands to describe.
	scratch *sync.Pool
}

type scratch[K any] struct {
	arrays []device.Array
	params []float64
	items  []K
}

var sgdOperation = operation[SGDUpdate, kernel.SGDItem]{
	name: "sgd", width: 3, scratch: new(sync.Pool), run: kernel.SGD,
	operands: func(u *SGDUpdate) [5]*Tensor { return [5]*Tensor{u.Param, u.Grad, u.MomentumBuf} },
	scalars: func(u *SGDUpdate, to []float64) []float64 {
		return append(to, u.LR, u.Momentum, u.Dampening, u.WeightDecay, param01(u.Nesterov), param01(u.First), param01(u.Maximize))
	},
	item: func(u *SGDUpdate, a [5][]float32, scale float64) kernel.SGDItem {
		return kernel.SGDItem{Param: a[0], Grad: a[1], MomentumBuf: a[2], SGDStep: u.step(scale)}
	},
}

var adamOperation = operation[AdamUpdate, kernel.AdamItem]{
	name: "adam", width: 5, scratch: new(sync.Pool), run: kernel.Adam,
	operands: func(u *AdamUpdate) [5]*Tensor {
		return [5]*Tensor{u.Param, u.Grad, u.ExpAvg, u.ExpAvgSq, u.MaxExpAvgSq}
	},
	scalars: func(u *AdamUpdate, to []float64) []float64 { return u.params(to) },
	item: func(u *AdamUpdate, a [5][]float32, scale float64) kernel.AdamItem {
		return kernel.AdamItem{Param: a[0], Grad: a[1], ExpAvg: a[2], ExpAvgSq: a[3], MaxExpAvgSq: a[4], AdamStep: u.step(scale)}
	},
}

var adagradOperation = operation[AdagradUpdate, kernel.AdagradItem]{
	name: "adagrad", width: 3, scratch: new(sync.Pool), run: kernel.Adagrad,
	operands: func(u *AdagradUpdate) [5]*Tensor { return [5]*Tensor{u.Param, u.Grad, u.Sum} },
	scalars: func(u *AdagradUpdate, to []float64) []float64 {
		return append(to, u.LR, u.WeightDecay, u.Eps, param01(u.Maximize))
	},
	item: func(u *AdagradUpdate, a [5][]float32, scale float64) kernel.AdagradItem {
		return kernel.AdagradItem{Param: a[0], Grad: a[1], Sum: a[2], AdagradStep: u.step(scale)}
	},
}

var rmspropOperation = operation[RMSpropUpdate, kernel.RMSpropItem]{
	name: "rmsprop", width: 5, scratch: new(sync.Pool), run: kernel.RMSprop,
	operands: func(u *RMSpropUpdate) [5]*Tensor {
		return [5]*Tensor{u.Param, u.Grad, u.SquareAvg, u.GradAvg, u.MomentumBuf}
	},
	scalars: func(u *RMSpropUpdate, to []float64) []float64 {
		return append(to, u.LR, u.Alpha, u.Eps, u.WeightDecay, u.Momentum, param01(u.Maximize))
	},
	item: func(u *RMSpropUpdate, a [5][]float32, scale float64) kernel.RMSpropItem {
		return kernel.RMSpropItem{Param: a[0], Grad: a[1], SquareAvg: a[2], GradAvg: a[3], MomentumBuf: a[4], RMSpropStep: u.step(scale)}
	},
}

// SGD updates parameters by stochastic gradient descent; the arithmetic is
// PyTorch's bit for bit on a CPU with fused multiply-add.
func SGD(updates []SGDUpdate, scale *Tensor) { multi(&sgdOperation, updates, scale) }

// Adam updates parameters by Adam (Kingma and Ba 2015, Algorithm 1) or AdamW
// (Loshchilov and Hutter 2019, Algorithm 2), and their moments too.
func Adam(updates []AdamUpdate, scale *Tensor) { multi(&adamOperation, updates, scale) }

// Adagrad updates parameters by Adagrad (Duchi, Hazan and Singer 2011), and
// their sums too.
func Adagrad(updates []AdagradUpdate, scale *Tensor) { multi(&adagradOperation, updates, scale) }

// RMSprop updates parameters by RMSprop (Tieleman and Hinton 2012; centered:
// Graves 2013), and their averages too.
func RMSprop(updates []RMSpropUpdate, scale *Tensor) { multi(&rmspropOperation, updates, scale) }

func (s SGDScalars) step(scale float64) kernel.SGDStep {
	return kernel.SGDStep{
		LR: s.LR, Momentum: s.Momentum, Dampening: s.Dampening, WeightDecay: s.WeightDecay,
		Nesterov: s.Nesterov, First: s.First, GradScale: direction(scale, s.Maximize),
	}
}

func (s AdamScalars) step(scale float64) kernel.AdamStep {
	return kernel.AdamStep{
		LR: s.LR, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps, WeightDecay: s.WeightDecay,
		Bias1: s.Bias1, Bias2: s.Bias2, Decoupled: s.Decoupled, GradScale: direction(scale, s.Maximize),
	}
}

func (s AdagradScalars) step(scale float64) kernel.AdagradStep {
	return kernel.AdagradStep{LR: s.LR, WeightDecay: s.WeightDecay, Eps: s.Eps, GradScale: direction(scale, s.Maximize)}
}

func (s RMSpropScalars) step(scale float64) kernel.RMSpropStep {
	return kernel.RMSpropStep{
		LR: s.LR, Alpha: s.Alpha, Eps: s.Eps, WeightDecay: s.WeightDecay, Momentum: s.Momentum, GradScale: direction(scale, s.Maximize),
	}
}

// direction turns the gradient round for a step that climbs.
func direction(scale float64, maximize bool) float64 {
	if maximize {
		return -scale
	}
	return scale
}

func (s AdamScalars) params(to []float64) []float64 {
	return append(to, s.LR, s.Beta1, s.Beta2, s.Eps, s.WeightDecay, s.Bias1, s.Bias2, param01(s.Decoupled), param01(s.Maximize))
}

// pair is an entry of the operations on two lists.
type pair struct {
	dst, src *Tensor
	weight   float64
}

// pairOperation is an operation on pairs. The kernel has the weight of all.
func pairOperation(name string, dsts, srcs []*Tensor, weight float64, run func(p *work.Pool, items []kernel.LerpItem)) {
	if len(dsts) != len(srcs) {
		fail(name, nil, "%d destinations and %d sources", len(dsts), len(srcs))
	}
	pairs := make([]pair, len(dsts))
	for i := range pairs {
		pairs[i] = pair{dsts[i], srcs[i], weight}
	}
	multi(&operation[pair, kernel.LerpItem]{
		name: name, width: 2, scratch: &pairScratch, run: run,
		operands: func(u *pair) [5]*Tensor { return [5]*Tensor{u.dst, u.src} },
		scalars:  func(u *pair, to []float64) []float64 { return append(to, u.weight) },
		item:     func(_ *pair, a [5][]float32, _ float64) kernel.LerpItem { return kernel.LerpItem{Dst: a[0], Src: a[1]} },
	}, pairs, nil)
}

var pairScratch sync.Pool

// LerpAll moves each of dsts towards its source by weight, from 0 to 1.
func LerpAll(dsts, srcs []*Tensor, weight float64) {
	pairOperation("lerp all", dsts, srcs, weight, func(p *work.Pool, items []kernel.LerpItem) { kernel.Lerp(p, items, weight) })
}

// SwapAll exchanges the elements of each of a with those of its partner in b.
func SwapAll(a, b []*Tensor) {
	pairOperation("swap all", a, b, 0, kernel.Swap)
	written(b...)
}

// ClampAll bounds the elements of all tensors by -limit and limit. NaN stays.
func ClampAll(ts []*Tensor, limit float64) {
	multi(&operation[*Tensor, []float32]{
		name: "clamp all", width: 1, scratch: &clampScratch,
		operands: func(t **Tensor) [5]*Tensor { return [5]*Tensor{*t} },
		scalars:  func(_ **Tensor, to []float64) []float64 { return append(to, limit) },
		item:     func(_ **Tensor, a [5][]float32, _ float64) []float32 { return a[0] },
		run:      func(p *work.Pool, xs [][]float32) { kernel.Clamp(p, xs, limit) },
	}, ts, nil)
}

var clampScratch sync.Pool

// multi does an operation on a list of updates. All operands of an update but
// the second are written; they may be nil. A device gets the operands and
// scalars of all updates one after another, and the scale last.
func multi[U, K any](op *operation[U, K], updates []U, scale *Tensor) {
	scale = scaleOperand(op.name, scale)
	s, _ := op.scratch.Get().(*scratch[K])
	if s == nil {
		s = &scratch[K]{}
	}
	for len(updates) > 0 {
		dev := op.operands(&updates[0])[0].Device()
		n := 0
		for i := range updates {
			ts := op.operands(&updates[i])
			if ts[0].Device() != dev {
				break // the rest is done after this device's
			}
			n++
			for j, t := range ts[:op.width] {
				var a device.Array
				if t != nil {
					ts[0].wantSame(op.name, t)
					t.wantDType(op.name, Float32)
					if !t.IsContiguous() {
						fail(op.name, ts[:op.width], "wants contiguous tensors")
					}
					if j != 1 {
						t.storage.version++
					}
					a = t.array()
				}
				s.arrays = append(s.arrays, a)
			}
			s.params = op.scalars(&updates[i], s.params)
		}
		now := updates[:n]
		updates = updates[n:]
		if scale == nil {
			s.arrays = append(s.arrays, device.Array{})
		} else {
			if scale.Device() != dev {
				fail(op.name, []*Tensor{scale}, "the scale is on device %s, the parameters on %s: move it there", scale.Device().Name(), dev.Name())
			}
			s.arrays = append(s.arrays, scale.array())
		}
		known := dev.Fused(device.Fused{Name: op.name, Params: s.params, CPU: func(p *work.Pool, arrays []device.Array) {
			factor, ok := scaleOf(arrays[len(arrays)-1])
			if !ok {
				return
			}
			for i := range now {
				var a [5][]float32
				for j := range op.width {
					a[j] = arrays[i*op.width+j].Float32s()
				}
				s.items = append(s.items, op.item(&now[i], a, factor))
			}
			op.run(p, s.items)
		}}, s.arrays...)
		if !known {
			fail(op.name, nil, "device %s has no kernel for it", dev.Name())
		}
		clear(s.arrays)
		clear(s.items)
		s.arrays, s.params, s.items = s.arrays[:0], s.params[:0], s.items[:0]
	}
	op.scratch.Put(s)
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

// scaleOf reads the scale of a step in a kernel: 1 if it is absent. It reports
// whether the step is to be done.
func scaleOf(a device.Array) (float64, bool) {
	if a.Ptr == nil {
		return 1, true
	}
	v := device.Elems[float64](a)[0]
	return v, !math.IsNaN(v) && !math.IsInf(v, 0)
}

// SGDRows is a step of [SGD] for a gradient by rows, without weight decay.
// Without momentum it touches the rows of g alone; with it all rows move, as
// if the gradient were zero elsewhere, and the buffer is zero when s.First.
func SGDRows(param, momentumBuf *Tensor, g RowGrad, s SGDScalars, scale *Tensor) {
	params := []float64{s.LR, s.Momentum, s.Dampening, param01(s.Nesterov), param01(s.First), param01(s.Maximize)}
	byRows("sgd rows", g, params, scale, []*Tensor{param, momentumBuf}, func(p *work.Pool, a [][]float32, ids []int64, rows []float32, width int, scale float64) {
		if a[1] == nil {
			kernel.SGDRows(p, a[0], ids, rows, width, s.step(scale))
			return
		}
		kernel.SGDMomentumRows(p, a[0], a[1], ids, rows, width, s.step(scale))
	})
}

// AdagradRows is a step of [Adagrad] for the rows of g alone, without weight
// decay.
func AdagradRows(param, sum *Tensor, g RowGrad, s AdagradScalars, scale *Tensor) {
	byRows("adagrad rows", g, []float64{s.LR, s.Eps, param01(s.Maximize)}, scale, []*Tensor{param, sum},
		func(p *work.Pool, a [][]float32, ids []int64, rows []float32, width int, scale float64) {
			kernel.AdagradRows(p, a[0], a[1], ids, rows, width, s.step(scale))
		})
}

// AdamRows is a step of PyTorch's SparseAdam: the rows of g alone, and their
// moments, move. It has no weight decay.
func AdamRows(param, expAvg, expAvgSq *Tensor, g RowGrad, s AdamScalars, scale *Tensor) {
	byRows("adam rows", g, s.params(nil), scale, []*Tensor{param, expAvg, expAvgSq},
		func(p *work.Pool, a [][]float32, ids []int64, rows []float32, width int, scale float64) {
			kernel.AdamRows(p, a[0], a[1], a[2], ids, rows, width, s.step(scale))
		})
}

// byRows checks a gradient against the table that is ts[0] and runs a kernel
// on both; ts are of one shape [rows, width] and all written.
func byRows(op string, g RowGrad, params []float64, scale *Tensor, ts []*Tensor, run func(p *work.Pool, a [][]float32, ids []int64, rows []float32, width int, scale float64)) {
	scale = scaleOperand(op, scale)
	table, operands := ts[0], append(ts[:len(ts):len(ts)], g.Rows, g.IDs, scale)
	for _, t := range ts {
		if t != nil {
			table.wantSame(op, t)
			wantContiguous(op, t)
			written(t)
		}
	}
	wantContiguous(op, g.Rows)
	n := g.IDs.NumElems()
	if len(table.shape) != 2 || len(g.Rows.shape) != 2 || g.Rows.shape[0] != n || g.Rows.shape[1] != table.shape[1] || g.NumRows != table.shape[0] {
		fail(op, operands, "wants a table [%d, width], %d rows of its width", g.NumRows, n)
	}
	ids := g.IDs.Int64s()
	for i, id := range ids {
		if id < 0 || id >= int64(g.NumRows) || i > 0 && id <= ids[i-1] {
			fail(op, operands, "row %d of the gradient is of row %d of the table: ids must increase, and be less than %d", i, id, g.NumRows)
		}
	}
	fused(op, params, operands, func(p *work.Pool, a []device.Array) {
		factor, ok := scaleOf(a[len(a)-1])
		if !ok {
			return
		}
		slices := make([][]float32, len(ts))
		for i := range slices {
			slices[i] = a[i].Float32s()
		}
		run(p, slices, ids, a[len(ts)].Float32s(), table.shape[1], factor)
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

func written(ts ...*Tensor) {
	for _, t := range ts {
		t.storage.version++
	}
}
