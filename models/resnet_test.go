// SPDX-License-Identifier: Apache-2.0

package models

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// fillAsInPyTorch draws the parameters as testdata/golden/resnet.py does.
func fillAsInPyTorch(m *ResNet, g *tensor.Generator) {
	for _, p := range nn.Parameters(m) {
		name, shape := p.Name(), p.Data().Shape()
		ends := func(suffixes ...string) bool {
			for _, s := range suffixes {
				if strings.HasSuffix(name, s) {
					return true
				}
			}
			return false
		}
		var low, high float64
		switch {
		case len(shape) == 4:
			high = math.Sqrt(6 / float64(shape[0]*shape[2]*shape[3]))
			low = -high
		case strings.HasPrefix(name, "fc."):
			low, high = -0.02, 0.02
		case ends("bn2.weight", "bn3.weight"):
			low, high = 0.1, 0.3
		case ends(".weight"):
			low, high = 0.5, 1.5
		case ends("bn2.bias", "bn3.bias"):
			low, high = 0.1, 0.5
		default:
			low, high = 0.5, 2
		}
		g.Uniform(p.Data(), low, high)
	}
}

// TestResNetTrainsAsInPyTorch: the loss, every parameter's gradient and 20 steps
// of SGD are those that testdata/golden/resnet.py computed in float64.
func TestResNetTrainsAsInPyTorch(t *testing.T) {
	g := openExpected(t, filepath.Join("testdata", "golden", "resnet.safetensors"))
	for _, c := range []struct {
		name                 string
		config               ResNetConfig
		batch, size, classes int
		lr                   float64
	}{
		{"resnet18", ResNet18Config, 8, 64, 10, 2e-3},
		{"resnet50", ResNet50Config, 2, 64, 1000, 2e-4},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Classes = c.classes
			m := NewResNet(&nn.Build{}, c.config)
			gen := tensor.NewGenerator(3)
			fillAsInPyTorch(m, gen)
			x, labels := tensor.Zeros(c.batch, 3, c.size, c.size), make([]int64, c.batch)
			gen.Uniform(x, -1, 1)
			for i := range labels {
				labels[i] = int64(i * 7 % c.classes)
			}
			y := tensor.FromInt64(labels)
			opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: c.lr})
			worst := 0.0
			for i, want := range g.read(t, c.name+".losses").Float32s() {
				opt.ZeroGrad()
				got, err := nn.Backward(t.Context(), func(ctx *nn.Ctx) *tensor.Tensor {
					return tensor.CrossEntropy(ctx.Call(m, x), y)
				})
				if err != nil {
					t.Fatal(err)
				}
				off := math.Abs(got-float64(want)) / float64(want)
				if worst = max(worst, off); !(off <= 1e-3) || i == 0 && !(off <= 1e-5) {
					t.Fatalf("loss of step %d is %.7f, PyTorch's %.7f", i, got, want)
				}
				if i == 0 {
					g.compareResNet(t, c.name, m)
				}
				opt.Step(nil)
			}
			t.Logf("largest relative difference of a loss: %.1e", worst)
			for _, b := range nn.Buffers(m) {
				if !strings.HasPrefix(b.Name(), "bn1.") {
					continue
				}
				want := g.read(t, c.name+"."+b.Name())
				if b.Data.DType() == tensor.Int64 {
					if got := b.Data.Item(); got != want.Item() {
						t.Errorf("%s is %v, PyTorch's %v", b.Name(), got, want.Item())
					}
					continue
				}
				compareValues(t, b.Name(), b.Data, want, 1e-4) // after 20 steps of two roundings
			}
		})
	}
}

// compareResNet holds the gradients against the elements of them that the file has.
func (g expected) compareResNet(t *testing.T, model string, m *ResNet) {
	t.Helper()
	worst, where := 0.0, ""
	for _, p := range nn.Parameters(m) {
		want := g.read(t, model+".grad."+p.Name()).Float32s()
		largest := g.read(t, model+".largest."+p.Name()).Item()
		got := p.Grad().Float32s()
		step := max(1, len(got)/64)
		for i, w := range want {
			// NaN, which compares with nothing, stays.
			if off := math.Abs(float64(got[i*step]-w)) / largest; off > worst || off != off {
				worst, where = off, p.Name()
			}
		}
	}
	if !(worst <= 1e-4) {
		t.Errorf("the gradient of %s is off by %.1e of its largest element", where, worst)
	}
	t.Logf("largest difference of a gradient: %.1e of its largest element, in %s", worst, where)
}

// The names and shapes are torchvision's, whose networks have so many parameters.
func TestResNetState(t *testing.T) {
	for _, c := range []struct {
		config ResNetConfig
		params int
		names  map[string][]int
	}{
		{ResNet18Config, 11689512, map[string][]int{"layer2.0.conv1.weight": {128, 64, 3, 3}, "layer2.0.downsample.0.weight": {128, 64, 1, 1}}},
		{ResNet34Config, 21797672, map[string][]int{"layer3.5.bn2.running_var": {256}}},
		{ResNet50Config, 25557032, map[string][]int{
			"conv1.weight": {64, 3, 7, 7}, "bn1.num_batches_tracked": {}, "layer1.0.downsample.1.running_mean": {256},
			"layer4.2.conv3.weight": {2048, 512, 1, 1}, "layer4.2.bn3.bias": {2048}, "fc.weight": {1000, 2048}, "fc.bias": {1000},
		}},
	} {
		c.config.ZeroInitResidual = true
		m := NewResNet(&nn.Build{Device: tensor.Meta}, c.config)
		if n := nn.NumParams(m); n != c.params {
			t.Errorf("%+v has %d parameters, want %d", c.config, n, c.params)
		}
		for _, s := range nn.StateDict(m) {
			if want, ok := c.names[s.Name]; ok {
				if len(want) != s.Tensor.NumDims() || len(want) > 0 && want[0] != s.Tensor.Dim(0) {
					t.Errorf("%s has shape %v, want %v", s.Name, s.Tensor.Shape(), want)
				}
				delete(c.names, s.Name)
			}
		}
		if len(c.names) > 0 {
			t.Errorf("%+v lacks %v", c.config, c.names)
		}
		ctx := nn.Training(t.Context(), nn.WithDevice(tensor.Meta))
		y := ctx.Call(m, tensor.New(tensor.Meta, tensor.Float32, 2, 3, 224, 224))
		if err := tensor.CrossEntropy(y, tensor.New(tensor.Meta, tensor.Int64, 2)).Backward(ctx); err != nil {
			t.Error(err)
		}
		ctx.Close()
	}
}

// The state of the norms, int64 counts of no dims among it, comes back from a
// checkpoint.
func TestResNetStateMovesThroughACheckpoint(t *testing.T) {
	config := ResNetConfig{Blocks: [4]int{1, 1, 1, 1}, Classes: 3}
	m := NewResNet(&nn.Build{}, config)
	_, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
		return c.Call(m, tensor.Full(0.5, 2, 3, 32, 32)).Sum()
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	err = checkpoint.Save(t.Context(), nil, storage.Dir(dir), 1, checkpoint.State{
		Sections: map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(m).All())},
	}, checkpoint.WithRetention(checkpoint.KeepLast(1)))
	if err != nil {
		t.Fatal(err)
	}
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	other := NewResNet(&nn.Build{Generator: tensor.NewGenerator(1)}, config)
	if err := ck.LoadTensors(checkpoint.Model, nn.StateDict(other).All()); err != nil {
		t.Fatal(err)
	}
	want := nn.StateDict(m)
	for i, s := range nn.StateDict(other) {
		if s.Tensor.DType() == tensor.Int64 {
			if got := s.Tensor.Item(); got != 1 {
				t.Errorf("%s is %v, want 1", s.Name, got)
			}
			continue
		}
		compareValues(t, s.Name, s.Tensor, want[i].Tensor, 0)
	}
}

func compareValues(t *testing.T, what string, got, want *tensor.Tensor, tolerance float64) {
	t.Helper()
	if d := maxDiff(got.Float32s(), want.Float32s(), 1e-2); !(d <= tolerance) {
		t.Errorf("%s is off by %.1e of its largest element", what, d)
	}
}
