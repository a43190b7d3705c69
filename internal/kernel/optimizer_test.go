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
						SGD(nil, p, g, momentum, SGDStep{LR: c.LR, Momentum: c.Momentum, Dampening: c.Dampening,
							WeightDecay: c.Decay, Nesterov: c.Nesterov, First: step == 1, GradScale: 1})
						continue
					}
					AdamW(nil, p, g, m, v, AdamWStep{LR: c.LR, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: c.Decay,
						Bias1: 1 - math.Pow(0.9, float64(step)), Bias2: 1 - math.Pow(0.999, float64(step)), GradScale: 1})
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
				if differ > 0 && (c.Optimizer == "sgd" || worst > 1e-6*c.LR/1e-3) {
					t.Errorf("%d of %d parameters differ from PyTorch %s (%s), by %.2g at most", differ, n, golden.Torch, golden.Capability, worst)
				}
				if !intact() {
					t.Error("wrote outside the parameter")
				}
			})
		}
	})
}

// TestOptimizersOverThreads checks that every variant and thread count gives
// the bits of the portable twin, and that GradScale is a scaled gradient.
func TestOptimizersOverThreads(t *testing.T) {
	ps := pools(t)
	adam := AdamWStep{LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, Bias1: 0.19, Bias2: 0.0199, GradScale: 1}
	for _, n := range lengths {
		rng := rand.New(rand.NewPCG(testSeed, 11))
		param, grad := uniform(rng, n, -1, 1), uniform(rng, n, -1, 1)
		m0, v0 := uniform(rng, n, -1, 1), uniform(rng, n, 0, 1)
		half := make([]float32, n)
		MulScalar(nil, half, grad, 0.5)
		adamRun := func(k *vectorKernels, threads int, g []float32, scale float64) []float32 {
			defer func(old *vectorKernels) { vectorTables[useISA] = old }(vectorTables[useISA])
			vectorTables[useISA] = k
			p, m, v := append([]float32(nil), param...), append([]float32(nil), m0...), append([]float32(nil), v0...)
			s := adam
			s.GradScale = scale
			AdamW(ps[threads], p, g, m, v, s)
			return append(append(p, m...), v...)
		}
		want := adamRun(&portableVector, 0, grad, 1)
		for k := portable; k <= bestISA; k++ {
			for i := range ps {
				mustEqualBits(t, fmt.Sprintf("AdamW n=%d %v", n, k), adamRun(vectorTables[k], i, grad, 1), want)
			}
			mustEqualBits(t, "AdamW with GradScale", adamRun(vectorTables[k], 0, grad, 0.5), adamRun(vectorTables[k], 0, half, 1))
		}
		for variant := range 5 {
			sgdRun := func(k isa, threads int) []float32 {
				defer func(old isa) { useISA = old }(useISA)
				useISA = k
				p, b := append([]float32(nil), param...), append([]float32(nil), m0...)
				buf := b
				if variant == 4 {
					buf = nil
				}
				SGD(ps[threads], p, grad, buf, SGDStep{LR: 0.1, Momentum: 0.9, Dampening: 0.2, WeightDecay: 0.01,
					Nesterov: variant&1 != 0, First: variant&2 != 0, GradScale: 0.7})
				return append(p, b...)
			}
			want := sgdRun(portable, 0)
			for k := portable; k <= bestISA; k++ {
				for i := range ps {
					mustEqualBits(t, fmt.Sprintf("SGD variant %d n=%d %v", variant, n, k), sgdRun(k, i), want)
				}
			}
		}
	}
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
