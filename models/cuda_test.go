// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
	"math"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/device/cuda/fake"
	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestGPTOnCUDA: a GPT trains on a CUDA device, on the stand-in for the driver, as on the CPU:
// 20 steps have the same losses up to 1e-5. From the third step on a step asks the driver for
// no memory, waits for nothing, and copies only the numbers of the positions from the host.
func TestGPTOnCUDA(t *testing.T) {
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
	if err := f.Start(fake.Options{Seed: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	dev, err := cuda.Open(cuda.Options{Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	options := []nn.CtxOption{nn.WithGenerator(tensor.NewGenerator(1))}
	here, there := trainings["gpt"](tensor.CPU()), trainings["gpt"](dev)
	for i := range 20 {
		want := here.step(t, tensor.CPU(), options...)
		waits, uploads, blocks := f.Count(fake.Waits), f.Count(fake.Uploads), f.Count(fake.Blocks)
		got := there.step(t, dev, options...)
		if i >= 2 {
			// The positions are made anew in each pass.
			for what, n := range map[string]int{"waits": f.Count(fake.Waits) - waits, "uploads": f.Count(fake.Uploads) - uploads - 1, "blocks of memory": f.Count(fake.Blocks) - blocks} {
				if n != 0 {
					t.Errorf("step %d has %d %s too many", i, n, what)
				}
			}
		}
		if w, g := want.Item(), got.Item(); !(math.Abs(w-g) <= 1e-5*math.Max(1, math.Abs(w))) {
			t.Fatalf("the loss of step %d is %v, on the CPU %v", i, g, w)
		}
	}
	theirs := nn.Parameters(there.model)
	for i, p := range nn.Parameters(here.model) {
		want, got := p.Data().Float32s(), theirs[i].Data().Float32s()
		for j := range want {
			if !(math.Abs(float64(want[j])-float64(got[j])) <= 1e-3) {
				t.Errorf("element %d of %s is %v, on the CPU %v", j, p.Name(), got[j], want[j])
				break
			}
		}
	}
}
