// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/work"
)

// Product is a matrix product C[m, n] = A[m, k]·B[k, n]. Layout names the
// operands that are stored transposed: "nn" none, "nt" B, "tn" A.
type Product struct {
	M, N, K int
	Layout  string
}

// maxElems bounds a matrix of a product: 4 GiB.
const maxElems = 1 << 30

// Layouts are the layouts of a product in a training step: the forward pass
// with a stored [in, out] matrix, with a stored [out, in] one, and the gradient
// of the weights.
func Layouts() []string { return []string{"nn", "nt", "tn"} }

// DefaultProducts are square products, and those of the steps of [Step] in
// every layout.
func DefaultProducts() []Product {
	var ps []Product
	for _, n := range []int{512, 1024, 2048} {
		ps = append(ps, Product{n, n, n, "nn"})
	}
	for _, s := range [][3]int{
		{1024, 768, 256}, {1024, 256, 1024}, {1024, 1024, 256}, {1024, 256, 256},
		{256, 1024, 784}, {256, 1024, 1024}, {256, 10, 1024},
	} {
		for _, layout := range Layouts() {
			ps = append(ps, Product{s[0], s[1], s[2], layout})
		}
	}
	return ps
}

// ParseProducts reads shapes written N (square) or MxNxK, each in every one of
// layouts.
func ParseProducts(shapes, layouts []string) ([]Product, error) {
	for _, l := range layouts {
		if !slices.Contains(Layouts(), l) {
			return nil, fmt.Errorf("no layout %q: there are %s", l, strings.Join(Layouts(), ", "))
		}
	}
	var ps []Product
	for _, text := range shapes {
		var dims []int
		for part := range strings.SplitSeq(text, "x") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("shape %q: want N or MxNxK with sizes of at least 1, as in 1024 or 256x1024x784", text)
			}
			dims = append(dims, n)
		}
		if len(dims) == 1 {
			dims = []int{dims[0], dims[0], dims[0]}
		}
		if len(dims) != 3 {
			return nil, fmt.Errorf("shape %q has %d sizes: want N or MxNxK", text, len(dims))
		}
		m, n, k := dims[0], dims[1], dims[2]
		if m > maxElems/n || m > maxElems/k || n > maxElems/k {
			return nil, fmt.Errorf("shape %q: a matrix of it has more than %d elements", text, maxElems)
		}
		for _, l := range layouts {
			ps = append(ps, Product{m, n, k, l})
		}
	}
	return ps, nil
}

// Gemm measures matrix products on numThreads threads. Each is repeated for at
// least minTime.
func Gemm(ctx context.Context, products []Product, numThreads int, minTime time.Duration, emit func(Result) error) error {
	if numThreads < 1 {
		return errors.New("bench gemm: it takes at least one thread")
	}
	threads, memory := work.New(numThreads), mem.NewPool()
	defer threads.Close()
	for _, p := range products {
		r, err := p.measure(ctx, threads, memory, minTime)
		if err != nil {
			return err
		}
		r.Threads = numThreads
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}

func (p Product) measure(ctx context.Context, threads *work.Pool, memory *mem.Pool, minTime time.Duration) (Result, error) {
	matrix := func(rows, cols int, trans bool, value float32) (kernel.Matrix, func()) {
		block := memory.Get(4 * rows * cols)
		data := unsafe.Slice((*float32)(block.Pointer()), rows*cols)
		m := kernel.Matrix{Data: data, Stride: cols, Trans: trans}
		if trans {
			m.Stride = rows
		}
		for i := range m.Data {
			m.Data[i] = value + float32(i%7)
		}
		return m, func() { memory.Put(block) }
	}
	a, freeA := matrix(p.M, p.K, p.Layout == "tn", 1)
	defer freeA()
	b, freeB := matrix(p.K, p.N, p.Layout == "nt", -1)
	defer freeB()
	c, freeC := matrix(p.M, p.N, false, 0)
	defer freeC()

	const warmUp, fewest, most = 2, 5, 100_000
	var ts times
	begin := time.Now()
	for i := 0; i < warmUp+fewest || time.Since(begin) < minTime && i < most; i++ {
		if err := ctx.Err(); err != nil {
			return Result{}, context.Cause(ctx)
		}
		start := time.Now()
		kernel.Gemm(threads, p.M, p.N, p.K, 1, a, b, 0, c.Data, c.Stride, nil)
		if i >= warmUp {
			ts = append(ts, time.Since(start))
		}
	}
	return Result{
		Bench: "gemm", Case: fmt.Sprintf("%dx%dx%d", p.M, p.N, p.K), Layout: p.Layout, DType: "float32",
		MedianMicros: micros(ts.median()), MinMicros: micros(ts.quantile(0)),
		GFlopPerSec: perSecond(2*float64(p.M)*float64(p.N)*float64(p.K), ts.median()),
	}, nil
}
