// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device"
)

// dtypeOps are the operations of testdata/golden/dtypes.py by their names there.
var dtypeOps = map[string]func(in []*Tensor) *Tensor{
	"add":     func(in []*Tensor) *Tensor { return in[0].Add(in[1]) },
	"sub":     func(in []*Tensor) *Tensor { return in[0].Sub(in[1]) },
	"mul":     func(in []*Tensor) *Tensor { return in[0].Mul(in[1]) },
	"div":     func(in []*Tensor) *Tensor { return in[0].Div(in[1]) },
	"maximum": func(in []*Tensor) *Tensor { return in[0].Maximum(in[1]) },
	"minimum": func(in []*Tensor) *Tensor { return in[0].Minimum(in[1]) },
	"eq":      func(in []*Tensor) *Tensor { return in[0].Eq(in[1]) },
	"ne":      func(in []*Tensor) *Tensor { return in[0].Ne(in[1]) },
	"lt":      func(in []*Tensor) *Tensor { return in[0].Lt(in[1]) },
	"le":      func(in []*Tensor) *Tensor { return in[0].Le(in[1]) },
	"gt":      func(in []*Tensor) *Tensor { return in[0].Gt(in[1]) },
	"ge":      func(in []*Tensor) *Tensor { return in[0].Ge(in[1]) },
	"and":     func(in []*Tensor) *Tensor { return in[0].LogicalAnd(in[1]) },
	"or":      func(in []*Tensor) *Tensor { return in[0].LogicalOr(in[1]) },
	"xor":     func(in []*Tensor) *Tensor { return in[0].LogicalXor(in[1]) },
	"where":   func(in []*Tensor) *Tensor { return Where(in[0], in[1], in[2]) },
	"neg":     func(in []*Tensor) *Tensor { return in[0].Neg() },
	"abs":     func(in []*Tensor) *Tensor { return in[0].Abs() },
	"square":  func(in []*Tensor) *Tensor { return in[0].Square() },
	"exp":     func(in []*Tensor) *Tensor { return in[0].Exp() },
	"sqrt":    func(in []*Tensor) *Tensor { return in[0].Abs().Sqrt() },
	"sin":     func(in []*Tensor) *Tensor { return in[0].Sin() },
	"sigmoid": func(in []*Tensor) *Tensor { return in[0].Sigmoid() },
	"relu":    func(in []*Tensor) *Tensor { return in[0].ReLU() },
	"gelu":    func(in []*Tensor) *Tensor { return in[0].GELU() },
	"silu":    func(in []*Tensor) *Tensor { return in[0].SiLU() },
	"leaky":   func(in []*Tensor) *Tensor { return in[0].LeakyReLU(0.1) },
	"floor":   func(in []*Tensor) *Tensor { return in[0].Floor() },
	"sign":    func(in []*Tensor) *Tensor { return in[0].Sign() },
	"not":     func(in []*Tensor) *Tensor { return in[0].LogicalNot() },
	"isnan":   func(in []*Tensor) *Tensor { return in[0].IsNaN() },
	"isinf":   func(in []*Tensor) *Tensor { return in[0].IsInf() },
	"add 2":   func(in []*Tensor) *Tensor { return in[0].AddScalar(2) },
	"mul 2":   func(in []*Tensor) *Tensor { return in[0].MulScalar(2) },
	"add 0.5": func(in []*Tensor) *Tensor { return in[0].AddScalar(0.5) },
	"mul 0.5": func(in []*Tensor) *Tensor { return in[0].MulScalar(0.5) },
	"div 2":   func(in []*Tensor) *Tensor { return in[0].DivScalar(2) },
	"pow 2":   func(in []*Tensor) *Tensor { return in[0].PowScalar(2) },
	"lt 1":    func(in []*Tensor) *Tensor { return in[0].LtScalar(1) },
	"clamp":   func(in []*Tensor) *Tensor { return in[0].Clamp(-1, 1) },
	"sum":     func(in []*Tensor) *Tensor { return in[0].Sum() },
	"sum 1":   func(in []*Tensor) *Tensor { return in[0].Sum(1) },
	"prod":    func(in []*Tensor) *Tensor { return in[0].Prod() },
	"amax":    func(in []*Tensor) *Tensor { return in[0].AMax() },
	"amin 0":  func(in []*Tensor) *Tensor { return in[0].AMin(0) },
	"max 1":   func(in []*Tensor) *Tensor { v, _ := in[0].Max(1); return v },
	"argmax":  func(in []*Tensor) *Tensor { return in[0].ArgMax(1) },
	"argmin":  func(in []*Tensor) *Tensor { return in[0].ArgMin(0) },
	"all":     func(in []*Tensor) *Tensor { return in[0].All() },
	"any 1":   func(in []*Tensor) *Tensor { return in[0].Any(1) },
	"mean":    func(in []*Tensor) *Tensor { return in[0].Mean() },
	"var 1":   func(in []*Tensor) *Tensor { return in[0].Var(1, 1) },
	"norm":    func(in []*Tensor) *Tensor { return in[0].Norm(2) },
	"softmax": func(in []*Tensor) *Tensor { return in[0].Softmax(1) },
	"log softmax": func(in []*Tensor) *Tensor {
		return in[0].LogSoftmax(0)
	},
	"logsumexp": func(in []*Tensor) *Tensor { return in[0].LogSumExp(1) },
}

// float64s returns the elements of any dtype.
func float64s(t *Tensor) []float64 {
	return slices.Clone(device.Elems[float64](t.detach().To(Float64).Contiguous().ToDevice(CPU()).array()))
}

// TestDTypesAgreeWithPyTorch holds results and their dtypes against PyTorch's,
// for all dtypes and pairs of them.
func TestDTypesAgreeWithPyTorch(t *testing.T) {
	// Two units in the last place, for the functions that are not exact.
	checkDTypes(t, CPU(), map[DType]float64{Float32: 3e-7, BFloat16: 1. / 128, Float16: 1. / 1024, Float64: 1e-15})
}

// checkDTypes is TestDTypesAgreeWithPyTorch on a device.
func checkDTypes(t *testing.T, dev Device, tolerance map[DType]float64) {
	golden, err := readGolden(filepath.Join("testdata", "golden", "dtypes.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for key, want := range golden {
		name, isOut := strings.CutSuffix(key, "/out")
		if !isOut {
			continue
		}
		op := name
		for dtypeOps[op] == nil {
			at := strings.LastIndexByte(op, ' ')
			if at < 0 {
				t.Fatalf("no operation for %q", name)
			}
			op = op[:at]
		}
		var in []*Tensor
		for x := golden[name+"/in0"]; x != nil; x = golden[fmt.Sprintf("%s/in%d", name, len(in))] {
			in = append(in, x.ToDevice(dev))
		}
		checked++
		func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("%s: %v", name, v)
				}
			}()
			got := dtypeOps[op](in)
			if got.DType() != want.DType() || !slices.Equal(got.Shape(), want.Shape()) {
				t.Errorf("%s: got %v%v, PyTorch has %v%v", name, got.DType(), got.Shape(), want.DType(), want.Shape())
				return
			}
			g, w := float64s(got), float64s(want)
			for i := range w {
				if g[i] != w[i] && !(math.IsNaN(g[i]) && math.IsNaN(w[i])) && !(math.Abs(g[i]-w[i]) <= tolerance[want.DType()]*math.Abs(w[i])) {
					t.Errorf("%s: element %d of %v is %v, PyTorch has %v", name, i, got.DType(), g[i], w[i])
					return
				}
			}
		}()
	}
	if checked < 700 {
		t.Errorf("only %d cases", checked)
	}
}
