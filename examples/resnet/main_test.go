// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

// results remembers how a run went.
type results struct {
	train.Reporter
	losses, accuracies []float64
}

func (r *results) Step(s train.Step) { r.losses = append(r.losses, s.Loss) }
func (r *results) Evaluation(e train.Evaluation) {
	r.accuracies = append(r.accuracies, e.Metrics[0].Value)
}

// TestTellsStripes: after a few steps on small images two ranks are better than chance.
// The checkpoint has the names and shapes of torchvision's ResNet-50.
func TestTellsStripes(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a ResNet-50 for some seconds")
	}
	*out, *steps, *batch, *side = filepath.Join(t.TempDir(), "run"), 8, 16, 32
	r := &results{Reporter: train.Discard}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := dist.Spawn(ctx, 2, func(ctx context.Context, group *dist.Group) error { return learn(ctx, group, r) }); err != nil {
		t.Fatal(err)
	}
	t.Logf("losses %.2f, accuracies %.2f", r.losses, r.accuracies)
	last := r.losses[len(r.losses)-1]
	if best := max(r.accuracies[2], r.accuracies[3]); len(r.losses) != 8 || best < 0.33 || !(last < r.losses[0]) {
		t.Errorf("losses %v, accuracies %v: want them to get better, from a quarter", r.losses, r.accuracies)
	}
	ck, _, err := checkpoint.Latest(ctx, storage.Dir(*out))
	if err != nil {
		t.Fatal(err)
	}
	weights, err := ck.Source(checkpoint.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close()
	config := models.ResNet50Config
	config.Classes = numStripes
	shapes := map[string][]int{}
	for _, info := range weights.Infos() {
		shapes[info.Name] = info.Shape
	}
	for name, want := range nn.StateDict(models.NewResNet(&nn.Build{Device: tensor.Meta}, config)).All() {
		if shape, ok := shapes[name]; !ok || !slices.Equal(shape, want.Shape()) {
			t.Errorf("%s of shape %v is saved with shape %v", name, want.Shape(), shape)
		}
	}
}

// TestStripes: an image depends only on its number, and its stripes have the
// direction of its class.
func TestStripes(t *testing.T) {
	ds := stripes(1, 40)
	for i := range ds.Len() {
		s, err := ds.Get(t.Context(), data.Key{Index: i})
		if err != nil {
			t.Fatal(err)
		}
		again, err := ds.Get(t.Context(), data.Key{Epoch: 3, Index: i})
		if err != nil || !bytes.Equal(s.Image.Pix, again.Image.Pix) {
			t.Fatalf("image %d is another one the second time, %v", i, err)
		}
		// The direction in which pixels change most: twice the angle of the gradients.
		var across, along float64
		at := func(x, y int) float64 { return float64(s.Image.Pix[3*(64*y+x)]) }
		for y := 2; y < 62; y++ {
			for x := 2; x < 62; x++ {
				dx, dy := at(x+2, y)-at(x-2, y), at(x, y+2)-at(x, y-2)
				across += dx*dx - dy*dy
				along += 2 * dx * dy
			}
		}
		angle := math.Atan2(along, across) / 2
		want := float64(s.Label) * math.Pi / numStripes
		if d := math.Abs(math.Remainder(angle-want, math.Pi)); d > 0.3 {
			t.Errorf("image %d of class %d: stripes at %.2f, want %.2f", i, s.Label, angle, want)
		}
	}
}
