// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"sync"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// optimizer runs what steps on lists of arrays.
func (c *CPU) optimizer(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.SGD:
		overUpdates(sgdItems, op.Updates, 3, a, func(u *device.SGDUpdate, a []device.Array, scale float64) kernel.SGDItem {
			return kernel.SGDItem{Param: a[0].Float32s(), Grad: a[1].Float32s(), MomentumBuf: a[2].Float32s(), SGDStep: sgdStep(u, scale)}
		}, func(items []kernel.SGDItem) { kernel.SGD(c.threads, items) })
	case device.Adam:
		overUpdates(adamItems, op.Updates, 5, a, func(u *device.AdamUpdate, a []device.Array, scale float64) kernel.AdamItem {
			return kernel.AdamItem{
				Param: a[0].Float32s(), Grad: a[1].Float32s(), ExpAvg: a[2].Float32s(), ExpAvgSq: a[3].Float32s(),
				MaxExpAvgSq: a[4].Float32s(), AdamStep: adamStep(u, scale),
			}
		}, func(items []kernel.AdamItem) { kernel.Adam(c.threads, items) })
	case device.Adagrad:
		overUpdates(adagradItems, op.Updates, 3, a, func(u *device.AdagradUpdate, a []device.Array, scale float64) kernel.AdagradItem {
			return kernel.AdagradItem{Param: a[0].Float32s(), Grad: a[1].Float32s(), Sum: a[2].Float32s(), AdagradStep: adagradStep(u, scale)}
		}, func(items []kernel.AdagradItem) { kernel.Adagrad(c.threads, items) })
	case device.RMSprop:
		overUpdates(rmspropItems, op.Updates, 5, a, func(u *device.RMSpropUpdate, a []device.Array, scale float64) kernel.RMSpropItem {
			return kernel.RMSpropItem{
				Param: a[0].Float32s(), Grad: a[1].Float32s(), SquareAvg: a[2].Float32s(), GradAvg: a[3].Float32s(), MomentumBuf: a[4].Float32s(),
				RMSpropStep: kernel.RMSpropStep{
					LR: u.LR, Alpha: u.Alpha, Eps: u.Eps, WeightDecay: u.WeightDecay, Momentum: u.Momentum, GradScale: direction(scale, u.Maximize),
				},
			}
		}, func(items []kernel.RMSpropItem) { kernel.RMSprop(c.threads, items) })
	case device.LerpAll:
		kernel.Lerp(c.threads, pairs(a), op.Weight)
	case device.SwapAll:
		kernel.Swap(c.threads, pairs(a))
	case device.ClampAll:
		xs := make([][]float32, len(a))
		for i := range a {
			xs[i] = a[i].Float32s()
		}
		kernel.Clamp(c.threads, xs, op.Limit)
	case device.ClipScale:
		norm := device.Elems[float64](a[1])[0]
		device.Elems[float64](a[0])[0] = min(1, op.MaxNorm/(norm+1e-6)) + 0*norm
	default:
		return false
	}
	return true
}

// optimizerRows runs the steps for gradients by rows.
func (c *CPU) optimizerRows(op device.Op, a []device.Array) bool {
	n := len(a) // the last three are the rows, their ids and the scale
	switch op := op.(type) {
	case device.SGDRows:
		ids, scale, ok := rowIDs(op, op.Check, a)
		switch {
		case !ok:
		case a[1].Ptr == nil:
			kernel.SGDRows(c.threads, a[0].Float32s(), ids, a[n-3].Float32s(), a[0].Shape[1], sgdStep(&op.SGDUpdate, scale))
		default:
			kernel.SGDMomentumRows(c.threads, a[0].Float32s(), a[1].Float32s(), ids, a[n-3].Float32s(), a[0].Shape[1], sgdStep(&op.SGDUpdate, scale))
		}
	case device.AdagradRows:
		if ids, scale, ok := rowIDs(op, op.Check, a); ok {
			kernel.AdagradRows(c.threads, a[0].Float32s(), a[1].Float32s(), ids, a[n-3].Float32s(), a[0].Shape[1], adagradStep(&op.AdagradUpdate, scale))
		}
	case device.AdamRows:
		if ids, scale, ok := rowIDs(op, op.Check, a); ok {
			kernel.AdamRows(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), ids, a[n-3].Float32s(), a[0].Shape[1], adamStep(&op.AdamUpdate, scale))
		}
	default:
		return false
	}
	return true
}

// rowIDs returns the ids and the scale of a step by rows, and whether it is to be done.
func rowIDs(op device.Op, check *device.Check, a []device.Array) (ids []int64, scale float64, ok bool) {
	ids = a[len(a)-2].Int64s()
	for i, id := range ids {
		if id < 0 || id >= int64(a[0].Shape[0]) || i > 0 && id <= ids[i-1] {
			check.Note(device.OpName(op), i, id)
			return nil, 0, false
		}
	}
	scale, ok = scaleOf(a[len(a)-1])
	return ids, scale, ok
}

// scaleOf returns the scale of a step, 1 if it is absent, and whether it is finite.
func scaleOf(a device.Array) (scale float64, ok bool) {
	if a.Ptr == nil {
		return 1, true
	}
	v := device.Elems[float64](a)[0]
	return v, !math.IsNaN(v) && !math.IsInf(v, 0)
}

// The lists of items are kept between calls: a model has hundreds of parameters.
var (
	sgdItems     = new(sync.Pool)
	adamItems    = new(sync.Pool)
	adagradItems = new(sync.Pool)
	rmspropItems = new(sync.Pool)
)

// overUpdates makes an item of each update and its width arguments, and runs all.
func overUpdates[U, K any](kept *sync.Pool, updates []U, width int, a []device.Array, item func(u *U, a []device.Array, scale float64) K, run func(items []K)) {
	scale, ok := scaleOf(a[len(a)-1])
	if !ok {
		return
	}
	list, _ := kept.Get().(*[]K)
	if list == nil {
		list = new([]K)
	}
	items := (*list)[:0]
	for i := range updates {
		items = append(items, item(&updates[i], a[i*width:(i+1)*width], scale))
	}
	run(items)
	clear(items)
	*list = items
	kept.Put(list)
}

func sgdStep(u *device.SGDUpdate, scale float64) kernel.SGDStep {
	return kernel.SGDStep{
		LR: u.LR, Momentum: u.Momentum, Dampening: u.Dampening, WeightDecay: u.WeightDecay,
		Nesterov: u.Nesterov, First: u.First, GradScale: direction(scale, u.Maximize),
	}
}

func adamStep(u *device.AdamUpdate, scale float64) kernel.AdamStep {
	return kernel.AdamStep{
		LR: u.LR, Beta1: u.Beta1, Beta2: u.Beta2, Eps: u.Eps, WeightDecay: u.WeightDecay,
		Bias1: u.Bias1, Bias2: u.Bias2, Decoupled: u.Decoupled, GradScale: direction(scale, u.Maximize),
	}
}

func adagradStep(u *device.AdagradUpdate, scale float64) kernel.AdagradStep {
	return kernel.AdagradStep{LR: u.LR, WeightDecay: u.WeightDecay, Eps: u.Eps, GradScale: direction(scale, u.Maximize)}
}

// direction turns the gradient round for a step that climbs.
func direction(scale float64, maximize bool) float64 {
	if maximize {
		return -scale
	}
	return scale
}

func pairs(a []device.Array) []kernel.LerpItem {
	items := make([]kernel.LerpItem, len(a)/2)
	for i := range items {
		items[i] = kernel.LerpItem{Dst: a[2*i].Float32s(), Src: a[2*i+1].Float32s()}
	}
	return items
}
