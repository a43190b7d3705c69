// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/device/cuda/fake"
	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// newCUDA returns a CUDA device of the stand-in for the driver.
func newCUDA(t *testing.T, o fake.Options) (*cuda.Device, *fake.Fake) {
	t.Helper()
	if !dlopen.Built {
		t.Skip("the driver is loaded only with -tags cuda")
	}
	f, err := fake.Build(t.TempDir())
	if errors.Is(err, fake.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(string(envvar.CUDAPath), f.Dir)
	if err := f.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	d, err := cuda.Open(cuda.Options{Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	return d, f
}

// noCUDA are the operations that the CUDA device has no kernel for yet; of attention only
// dropout is missing.
var noCUDA = []string{
	"attention", "avg pool", "batch norm", "batch norm running", "conv2d", "conv2d input grad", "cumprod", "cumsum",
	"embedding bag", "embedding bag bounds", "group norm", "group rows", "gru cell", "lstm cell", "max pool",
	"prod grad", "sort", "top k",
}

// TestOperationsOnCUDA: every operation of the tables, its gradient and the gradient of that
// is on a CUDA device what it is on the CPU, up to rounding, and results of all dtypes are PyTorch's. What misses a kernel is on a list.
func TestOperationsOnCUDA(t *testing.T) {
	dev, f := newCUDA(t, fake.Options{Seed: 1})
	var lacks []string
	passed := 0
	// without notes what a panic says of a kernel that is not there.
	without := func() {
		switch v := recover().(type) {
		case nil:
		case *Error:
			if !strings.Contains(v.Msg, "has no kernel for it") {
				t.Error(v)
			} else if !slices.Contains(lacks, v.Op) {
				lacks = append(lacks, v.Op)
			}
		default:
			t.Errorf("%v; %s", v, f.LastError())
		}
	}
	for _, area := range slices.Sorted(maps.Keys(tables)) {
		var onDevice []opCase
		func() {
			defer without()
			onDevice = tables[area](dev)
		}()
		for i, c := range tables[area](CPU())[:len(onDevice)] {
			t.Run(area+"/"+c.name, func(t *testing.T) {
				defer without()
				in := c.operands(uint64(i + 1))
				want := c.everything(t, in, uint64(i+1))
				moved := make([]*Tensor, len(in))
				for j, x := range in {
					moved[j] = x.ToDevice(dev)
				}
				got := onDevice[i].everything(t, moved, uint64(i+1))
				for j, w := range want {
					if (w == nil) != (got[j] == nil) {
						t.Fatalf("result %d is %v, the CPU's %v", j, got[j], w)
					}
					if w != nil {
						near(t, fmt.Sprintf("result %d", j), got[j].Float32s(), w.Float32s())
					}
				}
				passed++
			})
		}
	}
	t.Run("dtypes", func(t *testing.T) {
		checkDTypes(t, dev, map[DType]float64{Float32: 2e-6, BFloat16: 1. / 128, Float16: 1. / 1024, Float64: 1e-14})
	})
	slices.Sort(lacks)
	if !slices.Equal(lacks, noCUDA) {
		t.Errorf("the operations without a kernel are %q, and the list says %q", lacks, noCUDA)
	}
	t.Logf("%d rows are equal", passed)
}

// near compares to a tolerance relative to the largest element. NaN is equal to NaN.
func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, the CPU's %d", what, len(got), len(want))
	}
	scale := 1.0
	for _, w := range want {
		if v := math.Abs(float64(w)); v > scale && !math.IsInf(v, 0) {
			scale = v
		}
	}
	for i, w := range want {
		g := got[i]
		if g == w || g != g && w != w {
			continue
		}
		if d := math.Abs(float64(g) - float64(w)); !(d <= 2e-5*scale) {
			t.Errorf("element %d of %s is %v, the CPU's %v", i, what, g, w)
			return
		}
	}
}
