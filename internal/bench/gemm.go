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

// Product is a matrix product C[m, n] = A[m, k]·B[k, n], or Batch of them if
// Batch is more than 0. Layout names the operands that are stored transposed:
// "nn" none, "nt" B, "tn" A.
type Product struct {
	Batch, M, N, K int
	Layout         string
}

// String returns the sizes as [ParseProducts] reads them.
func (p Product) String() string {
	if p.Batch > 0 {
		return fmt.Sprintf("%dx%dx%dx%d", p.Batch, p.M, p.N, p.K)
	}
	return fmt.Sprintf("%dx%dx%d", p.M, p.N, p.K)
}

// maxElems bounds a matrix of a product, or a batch of them: 4 GiB.
const maxElems = 1 << 30

// Layouts are the layouts of a product in a training step: the forward pass
// with a stored [in, out] matrix, with a stored [out, in] one, and the gradient
// of the weights.
func Layouts() []string { return []string{"nn", "nt", "tn"} }

// DefaultProducts are square products, those of the steps of [Step] and of the
// last stages of ResNet-50, narrow ones from vectors on, ones with a short k, and
// batches as attention has them.
func DefaultProducts() []Product {
	var ps []Product
	add := func(layouts string, sizes ...[4]int) {
		for _, s := range sizes {
			for _, l := range strings.Fields(layouts) {
				ps = append(ps, Product{s[0], s[1], s[2], s[3], l})
			}
		}
	}
	add("nn", [4]int{0, 512, 512, 512}, [4]int{0, 1024, 1024, 1024}, [4]int{0, 2048, 2048, 2048})
	add("nn nt tn", [][4]int{
		{0, 1024, 768, 256}, {0, 1024, 256, 1024}, {0, 1024, 1024, 256}, {0, 1024, 256, 256},
		{0, 256, 1024, 784}, {0, 256, 1024, 1024}, {0, 256, 10, 1024},
		{0, 49, 512, 2048}, {0, 196, 256, 1024},
	}...)
	for _, n := range []int{1, 4, 8, 16, 32, 64} {
		add("nn nt", [4]int{0, n, 1024, 1024})
		add("nn tn", [4]int{0, 1024, n, 1024})
	}
	add("nn nt", [4]int{0, 1, 4096, 4096}, [4]int{0, 16, 4096, 4096}, [4]int{64, 128, 128, 32})
	add("nn tn", [4]int{0, 4096, 1, 4096}, [4]int{0, 4096, 16, 512})
	add("nn", [4]int{0, 512, 512, 32}, [4]int{0, 1024, 1024, 32}, [4]int{0, 1024, 1024, 64},
		[4]int{64, 128, 32, 128}, [4]int{8, 256, 256, 256})
	return ps
}

// ParseProducts reads shapes written N (square), MxNxK, or BATCHxMxNxK, each in
// every one of layouts.
func ParseProducts(shapes, layouts []string) ([]Product, error) {
	for _, l := range layouts {
		if !slices.Contains(Layouts(), l) {
			return nil, fmt.Errorf("no layout %q: want one of %s", l, strings.Join(Layouts(), ", "))
		}
	}
	var ps []Product
	for _, text := range shapes {
		var dims []int
		for part := range strings.SplitSeq(text, "x") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("shape %q: want N, MxNxK or BATCHxMxNxK with sizes of at least 1, as in 1024 or 256x1024x784", text)
			}
			dims = append(dims, n)
		}
		switch len(dims) {
		case 1:
			dims = []int{0, dims[0], dims[0], dims[0]}
		case 3:
			dims = append([]int{0}, dims...)
		case 4:
		default:
			return nil, fmt.Errorf("shape %q has %d sizes: want N, MxNxK or BATCHxMxNxK", text, len(dims))
		}
		batch, m, n, k := dims[0], dims[1], dims[2], dims[3]
		limit := maxElems / max(1, batch)
		if m > limit/n || m > limit/k || n > limit/k {
			return nil, fmt.Errorf("shape %q: a matrix of it has more than %d elements", text, maxElems)
		}
		for _, l := range layouts {
			ps = append(ps, Product{batch, m, n, k, l})
		}
	}
	return ps, nil
}

// GemmOptions say how products are measured.
type GemmOptions struct {
	DType      string // of operands and results: "float32" or "bfloat16"
	NumThreads int
	MinTime    time.Duration // for which each is repeated
}

// Gemm measures matrix products.
func Gemm(ctx context.Context, products []Product, o GemmOptions, emit func(Result) error) error {
	if o.NumThreads < 1 {
		return errors.New("bench gemm: it takes at least one thread")
	}
	if o.DType != "float32" && o.DType != "bfloat16" {
		return fmt.Errorf("bench gemm: no dtype %q: want float32 or bfloat16", o.DType)
	}
	threads, memory := work.New(o.NumThreads), mem.NewPool()
	defer threads.Close()
	for _, p := range products {
		r, err := p.measure(ctx, threads, memory, o)
		if err != nil {
			return err
		}
		r.Threads = o.NumThreads
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}

// operand returns a batch of matrices of one dtype, one behind the other, how
// far apart they are, and what frees them.
func operand(memory *mem.Pool, dtype string, batch, rows, cols int, trans bool, value float32) (kernel.Mixed, int, func()) {
	n := max(1, batch) * rows * cols
	block := memory.Get(4 * n)
	floats := unsafe.Slice((*float32)(block.Pointer()), n)
	for i := range floats {
		floats[i] = value + float32(i%7)
	}
	m := kernel.Mixed{F32: floats, Stride: cols, Trans: trans}
	if trans {
		m.Stride = rows
	}
	if dtype == "bfloat16" {
		half := memory.Get(2 * n)
		m.F32, m.BF16 = nil, unsafe.Slice((*uint16)(half.Pointer()), n)
		kernel.ToBF16(nil, m.BF16, floats)
		memory.Put(block)
		block = half
	}
	return m, rows * cols, func() { memory.Put(block) }
}

func (p Product) measure(ctx context.Context, threads *work.Pool, memory *mem.Pool, o GemmOptions) (Result, error) {
	a, nextA, freeA := operand(memory, o.DType, p.Batch, p.M, p.K, p.Layout == "tn", 1)
	defer freeA()
	b, nextB, freeB := operand(memory, o.DType, p.Batch, p.K, p.N, p.Layout == "nt", -1)
	defer freeB()
	c, nextC, freeC := operand(memory, o.DType, p.Batch, p.M, p.N, false, 0)
	defer freeC()
	plain := func(m kernel.Mixed) kernel.Matrix {
		return kernel.Matrix{Data: m.F32, Stride: m.Stride, Trans: m.Trans}
	}
	call := func() { kernel.GemmBF16(threads, p.M, p.N, p.K, 1, a, b, 0, c, nil) }
	switch {
	case o.DType == "float32" && p.Batch > 0:
		call = func() {
			kernel.GemmBatch(threads, p.Batch, p.M, p.N, p.K, 1, plain(a), nextA, plain(b), nextB, 0, c.F32, c.Stride, nextC)
		}
	case o.DType == "float32":
		call = func() { kernel.Gemm(threads, p.M, p.N, p.K, 1, plain(a), plain(b), 0, c.F32, c.Stride, nil) }
	case p.Batch > 0:
		call = func() {
			kernel.GemmBF16Batch(threads, p.Batch, p.M, p.N, p.K, 1, a, nextA, b, nextB, 0, c, nextC)
		}
	}

	const warmUp, fewest, most = 2, 5, 100_000
	var ts times
	begin := time.Now()
	for i := 0; i < warmUp+fewest || time.Since(begin) < o.MinTime && i < most; i++ {
		if err := ctx.Err(); err != nil {
			return Result{}, context.Cause(ctx)
		}
		start := time.Now()
		call()
		if i >= warmUp {
			ts = append(ts, time.Since(start))
		}
	}
	return Result{
		Bench: "gemm", Case: p.String(), Layout: p.Layout, DType: o.DType,
		MedianMicros: micros(ts.median()), MinMicros: micros(ts.quantile(0)),
		GFlopPerSec: perSecond(2*float64(max(1, p.Batch))*float64(p.M)*float64(p.N)*float64(p.K), ts.median()),
	}, nil
}
