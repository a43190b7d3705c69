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

	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/peak"
	"github.com/cohort-ml/cohort/internal/work"
)

// Product is a matrix product C[m, n] = A[m, k]·B[k, n]; see [peak.Product].
type Product = peak.Product

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
				ps = append(ps, Product{Batch: s[0], M: s[1], N: s[2], K: s[3], Layout: l})
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
			ps = append(ps, Product{Batch: batch, M: m, N: n, K: k, Layout: l})
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
		took, err := p.Measure(ctx, threads, memory, o.DType, o.MinTime)
		if err != nil {
			return err
		}
		ts := times(took)
		r := Result{
			Bench: "gemm", Case: p.String(), Layout: p.Layout, DType: o.DType, Threads: o.NumThreads,
			MedianMicros: micros(ts.median()), MinMicros: micros(ts.quantile(0)), GFlopPerSec: perSecond(p.FLOPs(), ts.median()),
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}
