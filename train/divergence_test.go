// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"image"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// flipped trains replicas, on one of which a bit of a weight flips after five steps; -1 for none. It
// returns the run, and the name of the parameter.
func flipped(t *testing.T, ranks, flip int) (f *fitting, name string) {
	t.Helper()
	f = newFitting(t)
	f.set = func(rank int, task *Task[points], _ *Options) {
		loss, step := task.Loss, 0
		weight := nn.Parameters(task.Model)[2]
		if rank == 0 {
			name = weight.Name()
		}
		task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
			if step++; step == 6 && rank == flip {
				weight.Data().WithFloat32s(func(v []float32) { v[1] = math.Float32frombits(math.Float32bits(v[1]) ^ 1) })
			}
			return loss(c, model, p)
		}
	}
	if _, err := f.run(t, ranks); err != nil {
		t.Fatal(err)
	}
	return f, name
}

// TestFlippedBit: a weight that differs in one bit on one rank is named, with the rank; and on
// good runs nothing is.
func TestFlippedBit(t *testing.T) {
	for flip := -1; flip < 3; flip++ {
		f, name := flipped(t, 3, flip)
		var said []string
		for _, text := range f.log.notices {
			if strings.Contains(text, "the replicas differ") {
				said = append(said, text)
			}
		}
		if flip < 0 {
			if len(said) > 0 {
				t.Errorf("nothing differs, and the run says %q", said)
			}
			continue
		}
		// The averaged gradients carry the difference to no other rank, so it stays one of that weight.
		if len(said) != 1 || !strings.Contains(said[0], fmt.Sprintf("parameter %s of rank %d ", name, flip)) {
			t.Errorf("a bit of %s on rank %d has flipped, and the run says %q", name, flip, said)
		}
	}
}

// TestDigestsGoRound: each element of each parameter has its turn.
func TestDigestsGoRound(t *testing.T) {
	params := nn.Parameters(&struct{ Small, Large *nn.Parameter }{
		nn.NewParameter(tensor.New(tensor.CPU(), tensor.Float32, 3)), nn.NewParameter(tensor.New(tensor.CPU(), tensor.Float32, 40, pieceElems)),
	})
	w := watchReplicas(params)
	before := map[uint64]uint64{}
	const rounds = 41/numDigests + 1
	for range rounds {
		for _, d := range w.next() {
			before[d.key] = d.hash
		}
	}
	if len(before) != 41 {
		t.Fatalf("%d pieces, want 41", len(before))
	}
	for i, p := range params {
		for _, at := range []int{0, p.Data().NumElems() - 1} {
			p.Data().WithFloat32s(func(v []float32) { v[at] = float32(i + 1) })
			changed := 0
			for range rounds {
				for _, d := range w.next() {
					if before[d.key] != d.hash {
						changed++
					}
					before[d.key] = d.hash
				}
			}
			if changed == 0 {
				t.Errorf("element %d of parameter %d has no turn", at, i)
			}
		}
	}
}

// TestLog: what a program logs is in the history and in the TensorBoard file of the run.
func TestLog(t *testing.T) {
	f := newFitting(t)
	f.set = func(_ int, task *Task[points], _ *Options) {
		loss := task.Loss
		task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
			l := Log(c)
			l.Scalar("answer", 42)
			l.Text("said", "hello")
			l.Histogram("inputs", []float32{-1, 0, 2, float32(math.NaN())})
			if err := l.Image("picture", image.NewRGBA(image.Rect(0, 0, 4, 4))); err != nil {
				t.Error(err)
			}
			return loss(c, model, p)
		}
	}
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	h, err := history.ReadDir(f.out)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Values) != 12 || h.Values[3].Name != "answer" || h.Values[3].Value != 42 || h.Values[3].Step != 3 {
		t.Errorf("got the values %+v", h.Values)
	}
	files, _ := filepath.Glob(filepath.Join(f.out, "events.out.tfevents.*"))
	if len(files) != 1 {
		t.Fatalf("got the files %v", files)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]int{"answer": 12, "said": 12, "inputs": 12, "picture": 12, "train/loss": 12, "train/points_per_second": 12} {
		if got := strings.Count(string(text), what); got != want {
			t.Errorf("%s is there %d times, want %d", what, got, want)
		}
	}
	if Log(t.Context()).Scalar("x", 1); Log(t.Context()).Image("x", nil) != nil {
		t.Error("without a run something is logged")
	}
}

// TestBuckets: each value is in the bucket whose edges it lies between.
func TestBuckets(t *testing.T) {
	for _, v := range []float32{0, 1e-10, 1e-9, 1.1e-9, 1, -1, 1.5, -3e4, 1e9, -1e9, 3e38, -3e38} {
		b := bucketsOf([]float32{v, float32(math.Inf(-1))})
		for i, n := range b.Counts {
			if n == 0 {
				continue
			}
			low := math.Inf(-1)
			if i > 0 {
				low = b.Edges[i-1]
			}
			if x := float64(v); x > b.Edges[i]*(1+1e-6*math.Copysign(1, b.Edges[i])) || x < low-1e-6*math.Abs(low) {
				t.Errorf("%v is in (%v, %v]", v, low, b.Edges[i])
			}
		}
		if b.Count != 1 || b.NonFinite != 1 || b.Sum != float64(v) {
			t.Errorf("%v: got %+v", v, b)
		}
	}
}
