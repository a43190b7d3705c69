// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestSameBitsAsOptim trains a table here and a parameter with package optim on the same
// gradients by rows. With 16 and 8 bits the parameter is rounded after each step.
func TestSameBitsAsOptim(t *testing.T) {
	seed := seeded.Of(t)
	const numRows, width, steps = 200, 21, 12
	cases := []struct {
		name      string
		optimizer Optimizer
		local     func(p *nn.Parameter) optim.Optimizer
	}{
		{"sgd", Optimizer{Kind: SGD, LR: 0.3}, func(p *nn.Parameter) optim.Optimizer {
			return optim.NewSGD([]*nn.Parameter{p}, optim.SGDOptions{LR: 0.3})
		}},
		{"defaults", Optimizer{}, func(p *nn.Parameter) optim.Optimizer {
			return optim.NewSGD([]*nn.Parameter{p}, optim.SGDOptions{})
		}},
		{"adagrad", Optimizer{Kind: Adagrad, LR: 0.2, LRDecay: 0.1, Initial: 0.3}, func(p *nn.Parameter) optim.Optimizer {
			return optim.NewAdagrad([]*nn.Parameter{p}, optim.AdagradOptions{LR: 0.2, LRDecay: 0.1, InitialAccumulatorValue: 0.3})
		}},
		{"lazy_adam", Optimizer{Kind: LazyAdam, LR: 0.05, Beta2: 0.99}, func(p *nn.Parameter) optim.Optimizer {
			return optim.NewSparseAdam([]*nn.Parameter{p}, optim.SparseAdamOptions{LR: 0.05, Beta2: 0.99})
		}},
		{"adam", Optimizer{Kind: Adam}, func(p *nn.Parameter) optim.Optimizer {
			return optim.NewAdam([]*nn.Parameter{p}, optim.AdamOptions{})
		}},
	}
	for _, c := range cases {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Int8} {
			t.Run(fmt.Sprintf("%s/%v", c.name, dtype), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				s := Schema{Name: "t", Width: width, Rows: numRows, DType: dtype, Init: Init{Kind: Normal, Scale: 0.1}, Optimizer: c.optimizer}
				table := newTable(t, s)
				all := make([]int64, numRows)
				for i := range all {
					all[i] = int64(i)
				}
				first := values(t, table, all)
				p := nn.NewParameter(tensor.FromFloat32(first, numRows, width))
				local := c.local(p)
				for step := 1; step <= steps; step++ {
					ids := slices.Clone(all)
					r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
					ids = ids[:1+r.IntN(150)]
					slices.Sort(ids)
					grad := make([]float32, len(ids)*width)
					for i := range grad {
						grad[i] = float32(r.NormFloat64())
					}
					g := tensor.RowGrad{IDs: tensor.FromInt64(ids, len(ids)), Rows: tensor.FromFloat32(grad, len(ids), width), NumRows: numRows}
					if c.optimizer.Kind == Adam {
						p.SetGrad(g.Dense())
					} else {
						p.SetRowGrad(&g)
					}
					local.Step(nil)
					if dtype != tensor.Float32 {
						p.Data().WithFloat32s(func(data []float32) {
							touched := ids
							if c.optimizer.Kind == Adam {
								touched = all
							}
							b := make([]byte, rowBytes(dtype, width))
							for _, id := range touched {
								row := data[id*width : (id+1)*width]
								encode(b, row, dtype, width)
								decode(row, b, dtype, width)
							}
						})
					}
					// The server's keys come in any order.
					order := r.Perm(len(ids))
					keys, shuffled := make([]int64, len(ids)), make([]float32, len(grad))
					for to, from := range order {
						keys[to] = ids[from]
						copy(shuffled[to*width:(to+1)*width], grad[from*width:])
					}
					if _, err := table.Update(Mark{LSN: uint64(step), Step: uint64(step)}, keys, shuffled); err != nil {
						t.Fatal(err)
					}
					if err := sameBits(values(t, table, all), p.Data().Float32s()); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
				}
			})
		}
	}
}

// TestFormulas compares row-wise Adagrad and FTRL with a script's float64.
func TestFormulas(t *testing.T) {
	text, err := os.ReadFile("testdata/optimizers.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Keys  []int64
		Width int
		Cases []struct {
			Optimizer Optimizer
			Rows      [][]float64
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	for _, c := range golden.Cases {
		table := newTable(t, Schema{Width: golden.Width, Init: Init{Kind: Constant, Scale: 0.25}, Optimizer: c.Optimizer})
		zeros := 0
		for i, want := range c.Rows {
			step := int64(i + 1)
			var keys []int64
			var grad []float32
			for _, k := range golden.Keys {
				if (step+k)%3 == 0 {
					continue
				}
				keys = append(keys, k)
				for j := range golden.Width {
					grad = append(grad, float32(((step*7+k*3+int64(j)*5)%11+11)%11-5)/4)
				}
			}
			if _, err := table.Update(Mark{LSN: uint64(step), Step: uint64(step)}, keys, grad); err != nil {
				t.Fatal(err)
			}
			for j, got := range values(t, table, golden.Keys) {
				if math.Abs(float64(got)-want[j]) > 2e-6*max(1, math.Abs(want[j])) {
					t.Errorf("%+v, step %d: value %d is %v, want %v", c.Optimizer, step, j, got, want[j])
				}
				if want[j] == 0 {
					zeros++
				}
			}
		}
		if c.Optimizer.L1 > 0 && zeros < 10 {
			t.Errorf("%+v: the script has %d zeros, which shows nothing about L1", c.Optimizer, zeros)
		}
	}
}

// TestLearningRateOfMark: a schedule's rate takes the place of the optimizer's.
func TestLearningRateOfMark(t *testing.T) {
	table := newTable(t, Schema{Width: 1, Optimizer: Optimizer{LR: 1}})
	for i, lr := range []float64{0, 0.5, 0.25} {
		if _, err := table.Update(Mark{LSN: uint64(i + 1), Step: 1, LR: lr}, []int64{1}, []float32{-8}); err != nil {
			t.Fatal(err)
		}
	}
	if got := values(t, table, []int64{1})[0]; got != 8+4+2 {
		t.Errorf("the value is %v, want 14", got)
	}
}
