// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"
)

// goldenValues are the values of testdata/optimizer.py.
func goldenValues(n, salt int) []float32 {
	x := make([]float32, n)
	for i := range x {
		bits := uint32(uint64(i+1+1000*salt) * 2654435761)
		x[i] = float32(bits>>8)/(1<<24) - 0.5
	}
	return x
}

// TestOptimizersAgreeWithPyTorch runs the steps that testdata/optimizer.py ran
// in PyTorch: SGD must give the same bits, AdamW values within a few ulp.
func TestOptimizersAgreeWithPyTorch(t *testing.T) {
	raw, err := os.ReadFile("testdata/optimizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Torch, Capability string
		Steps             int
		Cases             []struct {
			Optimizer                      string
			LR, Momentum, Dampening, Decay float64
			Nesterov                       bool
			Bits                           []int32
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	forEachISA(t, func(t *testing.T) {
		for i, c := range golden.Cases {
			t.Run(fmt.Sprintf("%d-%s", i, c.Optimizer), func(t *testing.T) {
				n := len(c.Bits)
				p, intact := guarded(n)
				copy(p, goldenValues(n, 0))
				m, v := make([]float32, n), make([]float32, n)
				var momentum []float32
				if c.Momentum != 0 {
					momentum = m
					Fill(nil, m, float32(math.NaN())) // the first step must not read it
				}
				for step := 1; step <= golden.Steps; step++ {
					g := goldenValues(n, step)
					if c.Optimizer == "sgd" {
						SGD(nil, []SGDItem{{p, g, momentum, SGDStep{LR: c.LR, Momentum: c.Momentum, Dampening: c.Dampening,
							WeightDecay: c.Decay, Nesterov: c.Nesterov, First: step == 1, GradScale: 1}}})
						continue
					}
					Adam(nil, []AdamItem{{p, g, m, v, nil, AdamStep{LR: c.LR, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: c.Decay, Decoupled: true,
						Bias1: 1 - math.Pow(0.9, float64(step)), Bias2: 1 - math.Pow(0.999, float64(step)), GradScale: 1}}})
				}
				differ, worst := 0, 0.0
				for i, bits := range c.Bits {
					want := math.Float32frombits(uint32(bits))
					if p[i] != want {
						differ++
						worst = max(worst, math.Abs(float64(p[i])-float64(want)))
					}
				}
				t.Logf("%d of %d differ from PyTorch %s (%s), by %.2g at most", differ, n, golden.Torch, golden.Capability, worst)
				if differ > 0 && (c.Optimizer == "sgd" || !(worst <= 1e-6*c.LR/1e-3)) {
					t.Errorf("%d of %d parameters differ from PyTorch %s (%s), by %.2g at most", differ, n, golden.Torch, golden.Capability, worst)
				}
				if !intact() {
					t.Error("wrote outside the parameter")
				}
			})
		}
	})
}

// TestFMA32 compares the portable fused multiply-add with exact arithmetic, on
// operands made to land near the middle between two results.
func TestFMA32(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed, 12))
	for range 200_000 {
		x := math.Float32frombits(rng.Uint32()&0x0fffff | 0x3f800000)
		y := math.Float32frombits(rng.Uint32()&0x80000fff | 0x3f800000)
		z := float32(math.Ldexp(1+float64(rng.Uint32()>>9)/(1<<23), rng.IntN(60)-30))
		exact := new(big.Float).SetPrec(200).SetFloat64(float64(x) * float64(y))
		exact.Add(exact, new(big.Float).SetFloat64(float64(z)))
		want, _ := exact.Float32()
		if got := fma32(x, y, z); got != want {
			t.Fatalf("fma32(%v, %v, %v) is %v, want %v", x, y, z, got, want)
		}
	}
}
