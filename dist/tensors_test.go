// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"

	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/tensor"
)

var dtypes = []tensor.DType{tensor.Float32, tensor.Int64, tensor.BFloat16, tensor.Float16, tensor.Float64,
	tensor.Int32, tensor.Int8, tensor.Uint8, tensor.Bool}

// layouts are the ways in which the elements of a tensor may lie.
var layouts = []string{"dense", "shared", "some shared", "offset", "column", "shared column", "transposed"}

// laid returns a tensor of n elements in one of the layouts; its shape is no
// more than a way to have the layout.
func laid(layout string, dtype tensor.DType, n, rank int) *tensor.Tensor {
	dev := tensor.CPU()
	switch layout {
	case "shared":
		return tensor.NewShared(dev, dtype, n)
	case "some shared":
		if rank%2 == 1 {
			return tensor.NewShared(dev, dtype, n+3).Narrow(0, 3, n)
		}
	case "offset":
		return tensor.New(dev, dtype, n+1).Narrow(0, 1, n)
	case "column":
		return tensor.New(dev, dtype, n, 3).Select(1, 1)
	case "shared column":
		return tensor.NewShared(dev, dtype, n, 2).Select(1, 1)
	case "transposed":
		for _, rows := range []int{7, 5, 4, 3, 2} {
			if n%rows == 0 {
				return tensor.New(dev, dtype, rows, 2, n/rows).Narrow(1, 0, 1).Permute(2, 1, 0)
			}
		}
		return tensor.New(dev, dtype, 1, n).T()
	}
	return tensor.New(dev, dtype, n)
}

// elements gives access to a tensor's elements by their number in row-major
// order, while the tensor is kept.
type elements struct {
	dtype tensor.DType
	loan  tensor.Loan
	dense bool
	n     int
}

func elementsOf(t *tensor.Tensor) elements {
	loan, err := t.Lend()
	if err != nil {
		panic(err)
	}
	return elements{t.DType(), loan, t.IsContiguous(), t.NumElems()}
}

// at returns the bytes from an element on.
func (e elements) at(i int) []byte {
	if e.dense {
		return e.loan.Data[i*e.dtype.Size():]
	}
	offset := 0
	for d := len(e.loan.Shape) - 1; d >= 0; d-- {
		offset += i % e.loan.Shape[d] * e.loan.Strides[d]
		i /= e.loan.Shape[d]
	}
	return e.loan.Data[offset*e.dtype.Size():]
}

func (e elements) get(i int) float64 {
	switch b, order := e.at(i), binary.NativeEndian; e.dtype {
	case tensor.Float32:
		return float64(math.Float32frombits(order.Uint32(b)))
	case tensor.Float64:
		return math.Float64frombits(order.Uint64(b))
	case tensor.BFloat16:
		return float64(half.FromBFloat16(order.Uint16(b)))
	case tensor.Float16:
		return float64(half.FromFloat16(order.Uint16(b)))
	case tensor.Int64:
		return float64(int64(order.Uint64(b)))
	case tensor.Int32:
		return float64(int32(order.Uint32(b)))
	case tensor.Int8:
		return float64(int8(b[0]))
	default:
		return float64(b[0])
	}
}

func (e elements) set(i int, v float64) {
	switch b, order := e.at(i), binary.NativeEndian; e.dtype {
	case tensor.Float32:
		order.PutUint32(b, math.Float32bits(float32(v)))
	case tensor.Float64:
		order.PutUint64(b, math.Float64bits(v))
	case tensor.BFloat16:
		order.PutUint16(b, half.BFloat16(float32(v)))
	case tensor.Float16:
		order.PutUint16(b, half.Float16(float32(v)))
	case tensor.Int64:
		order.PutUint64(b, uint64(int64(v)))
	case tensor.Int32:
		order.PutUint32(b, uint32(int32(v)))
	default:
		b[0] = uint8(int64(v))
	}
}

// fill sets the elements of a tensor.
func fill(t *tensor.Tensor, value func(i int) float64) *tensor.Tensor {
	defer runtime.KeepAlive(t)
	e := elementsOf(t)
	for i := range e.n {
		e.set(i, value(i))
	}
	return t
}

// differs compares every element, of many some and the last, with what is
// wanted, up to a part of it.
func differs(what string, t *tensor.Tensor, tolerance float64, want func(i int) float64) error {
	defer runtime.KeepAlive(t)
	e := elementsOf(t)
	step := 1 + e.n/10_000
	for i := 0; i < e.n; i = max(i+1, min(i+step, e.n-1)) {
		if got, want := e.get(i), want(i); got != want && !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
			return fmt.Errorf("%s: element %d of %d %v is %v, want %v", what, i, e.n, e.dtype, got, want)
		}
	}
	return nil
}

// private returns data outside slabs; its alignment is that of an element only.
func private(d tensor.DType, n int) *tensor.Tensor { return laid("offset", d, n, 0) }

// period is after how many elements a rank's values come again.
const period = 201

// value is what rank r has in element i: sums of a few are exact in float32.
func value(r, i int) int64 { return int64((i*7+r*31)%period - 100) }

// filled returns a rank's values.
func filled(d tensor.DType, n, rank int) *tensor.Tensor {
	t := private(d, n)
	e := elementsOf(t)
	for i := range min(n, period) {
		e.set(i, float64(value(rank, i)))
	}
	data := e.loan.Data[:n*d.Size()]
	for done := period * d.Size(); done < len(data); done *= 2 {
		copy(data[done:], data[:done])
	}
	runtime.KeepAlive(t)
	return t
}

// check compares every element with what is wanted.
func check(what string, t *tensor.Tensor, want func(i int) int64) error {
	return differs(what, t, 0, func(i int) float64 { return float64(want(i)) })
}

// messagesRoundTheRing sends from every rank to the next, all at once.
func messagesRoundTheRing(ctx context.Context, g *Group) error {
	if g.Size() == 1 {
		return nil
	}
	next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Int64} {
		for _, n := range numElems {
			x, y := filled(dt, n, g.Rank()), private(dt, n)
			w := g.SendAsync(ctx, x, next)
			if err := g.Recv(ctx, y, prev); err != nil {
				return err
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := check("recv", y, func(i int) int64 { return value(prev, i) }); err != nil {
				return err
			}
		}
	}
	return nil
}
