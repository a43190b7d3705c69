// SPDX-License-Identifier: Apache-2.0

package train

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// TestTrainsInBFloat16: two ranks learn in bfloat16 as in float32, the checkpoint
// says so and is float32, and a run that goes on keeps to it unless told otherwise.
func TestTrainsInBFloat16(t *testing.T) {
	c := tiny(t, writeText(t, 40_000))
	wide, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	c.DType, c.Out = "bfloat16", c.Out+"-low"
	low, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	same := true
	for step, want := range wide.losses {
		if off := math.Abs(low.losses[step]-want) / want; !(off < 0.02) {
			t.Errorf("step %d: loss %v, in float32 %v", step, low.losses[step], want)
		}
		same = same && low.losses[step] == want
	}
	if same || low.start.DType != "bfloat16" {
		t.Errorf("the run was in %s, its losses equal to those of float32: %t", low.start.DType, same)
	}
	ck, err := checkpoint.Open(t.Context(), storage.Dir(c.Out), checkpoint.StepName(c.Steps))
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range []string{checkpoint.Model, checkpoint.Optimizer} {
		f, err := ck.Source(section)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range f.Infos() {
			if info.DType == safetensors.BF16 {
				t.Errorf("%s: %s is saved as %v", section, info.Name, info.DType)
			}
		}
		f.Close()
	}
	c.DType = DefaultLM().DType
	for _, next := range []struct {
		explicit []string
		want     string
	}{{[]string{"steps"}, "bfloat16"}, {[]string{"steps", "dtype"}, "float32"}} {
		c.Steps += 2
		l, err := run(t, 2, c, next.explicit...)
		if err != nil {
			t.Fatal(err)
		}
		if l.start.DType != next.want || l.start.Resumed == "" {
			t.Errorf("resumed with %v from %q in %s, want %s", next.explicit, l.start.Resumed, l.start.DType, next.want)
		}
	}
}
