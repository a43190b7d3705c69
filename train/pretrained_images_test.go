// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// logitsOfPhoto runs a classifier on a file.
func logitsOfPhoto(t *testing.T, m *Classifier, path string) []float32 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	img, err := vision.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = m.Config.fit(img); err != nil {
		t.Fatal(err)
	}
	b, err := m.Config.collate()([]vision.Sample{{Image: img}})
	if err != nil {
		t.Fatal(err)
	}
	c := nn.Evaluation(t.Context())
	defer c.Close()
	return slices.Clone(m.Logits(c, m.Model, b).Float32s())
}

func wantLogits(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	largest, worst := 0.0, 0.0
	for i := range want {
		largest = max(largest, math.Abs(want[i]))
		worst = max(worst, math.Abs(float64(got[i])-want[i]))
	}
	if len(got) != len(want) || !(worst <= 1e-5*largest) {
		t.Errorf("%s: logits %v, want %v: off by %.2g of the largest", what, got, want, worst/largest)
	}
}

// TestPretrainedImages: networks of timm and torchvision give what they give there, from the
// bytes of a photo on. A run that begins with one leaves its frozen layers as they are, and
// timm and torchvision open the checkpoint.
//
//	go test ./train -run TestPretrainedImages -python /path/to/python
func TestPretrainedImages(t *testing.T) {
	if *python == "" {
		t.Skip("needs -python")
	}
	dir := t.TempDir()
	ask := func(args ...string) (answer map[string]json.RawMessage) {
		cmd := exec.CommandContext(t.Context(), *python, append([]string{"testdata/pretrained_images.py"}, args...)...)
		cmd.Stderr = os.Stderr
		text, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	floats := func(text json.RawMessage) (v []float64) {
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	made, photo := ask("make", dir), filepath.Join(dir, "photo.jpg")
	m, err := Load(t.Context(), storage.Dir(filepath.Join(dir, "timm")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := m.Images.Config; c.Size != 96 || c.Resize != 101 || c.Interpolation != bicubic || !slices.Equal(c.Classes, []string{"ant", "bee", "cat", "dog", "elk"}) {
		t.Errorf("the config %+v", c)
	}
	wantLogits(t, "timm", logitsOfPhoto(t, m.Images, photo), floats(made["timm"]))
	p, err := findPretrained(t.Context(), SaveConfig{}, filepath.Join(dir, "torchvision.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	other, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	wantLogits(t, "torchvision", logitsOfPhoto(t, other, photo), floats(made["torchvision"]))

	c := smallVision(t)
	c.Model, c.InitFrom, c.Data, c.Epochs, c.Batch, c.Freeze, c.Size = "", filepath.Join(dir, "timm"), folder(t, 10), 1, 4, []string{"conv1", "bn1", "layer1"}, 0
	given := flags([]string{"init-from", "data", "epochs", "batch", "freeze"})
	c.Model = DefaultVision().Model
	if err := trainVision(t.Context(), c, given, 1, newLog()); err != nil {
		t.Fatal(err)
	}
	ck, err := latest(t.Context(), storage.Dir(c.Out), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	tuned, err := OpenClassifier(ck)
	if err != nil {
		t.Fatal(err)
	}
	before := make(map[string]*tensor.Tensor)
	for _, s := range nn.StateDict(m.Images.Model) {
		before[s.Name] = s.Tensor
	}
	for _, s := range nn.StateDict(tuned.Model) {
		frozen := strings.HasPrefix(s.Name, "conv1.") || strings.HasPrefix(s.Name, "bn1.") || strings.HasPrefix(s.Name, "layer1.")
		if same := slices.Equal(s.Tensor.Shape(), before[s.Name].Shape()) && bytes.Equal(s.Tensor.Buffer().Data, before[s.Name].Buffer().Data); same != frozen {
			t.Errorf("%s: the same %v, frozen %v", s.Name, same, frozen)
		}
	}
	// Frozen layers lie in a file of their own, and timm opens one file.
	c.Freeze, c.Out = nil, t.TempDir()
	if err := trainVision(t.Context(), c, given, 1, newLog()); err != nil {
		t.Fatal(err)
	}
	if ck, err = latest(t.Context(), storage.Dir(c.Out), func(string) {}); err != nil {
		t.Fatal(err)
	}
	if tuned, err = OpenClassifier(ck); err != nil {
		t.Fatal(err)
	}
	opened := ask("open", ck.Path, photo)
	wantLogits(t, "timm opens the checkpoint", logitsOfPhoto(t, tuned, photo), floats(opened["timm"]))
	if string(opened["same"]) != "true" {
		t.Error("torchvision has other weights than timm")
	}
}

// TestTimmSettings: what timm's config.json says is honoured or refused by name.
func TestTimmSettings(t *testing.T) {
	good := `{"architecture": "resnet18.a1_in1k", "num_classes": 3, "model_args": {"global_pool": "avg", "num_classes": 3, "in_chans": 3}, "pretrained_cfg": {"input_size": [3, 64, 64], "interpolation": "bilinear", "crop_pct": 0.5, "mean": [0.1, 0.2, 0.3], "std": [1, 2, 3]}}`
	shapes := make(map[string][]int)
	plan, err := NewClassifier(&nn.Build{Device: tensor.Meta}, ClassifierConfig{ModelType: visionResNet18, Size: 224, Channels: 3, Classes: []string{"a", "b", "c"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range nn.StateDict(plan.Model) {
		shapes[s.Name] = s.Tensor.Shape()
	}
	read := func(text string, change func(shapes map[string][]int)) (ClassifierConfig, error) {
		var infos []safetensors.Info
		of := make(map[string][]int)
		for name, shape := range shapes {
			of[name] = slices.Clone(shape)
		}
		if change != nil {
			change(of)
		}
		for name, shape := range of {
			infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape})
		}
		p := pretrainedImages{source: justShapes{infos: infos}}
		var c timmConfig
		if text != "" {
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				t.Fatal(err)
			}
		}
		err := p.read([]byte(text), c)
		return p.config, err
	}
	if c, err := read(good, nil); err != nil || c.Size != 64 || c.Resize != 128 || c.Mean[2] != 0.3 || c.Std[1] != 2 || !slices.Equal(c.Classes, []string{"0", "1", "2"}) {
		t.Errorf("%+v, %v", c, err)
	}
	for change, want := range map[string]string{
		`"resnet18.a1_in1k"|"resnet18d.ra2"`:         `names the architecture "resnet18d.ra2"`,
		`"resnet18.a1_in1k"|"resnet50"`:              "says that this is a resnet50, the weights are those of a resnet18",
		`"bilinear"|"lanczos"`:                       `interpolation is "lanczos"`,
		`"crop_pct": 0.5|"crop_pct": 1.5`:            "crop_pct is 1.5",
		`[3, 64, 64]|[1, 64, 64]`:                    "input_size is [1 64 64]",
		`"crop_pct": 0.5|"crop_mode": "border"`:      `crop_mode is "border"`,
		`[1, 2, 3]|[1, 0, 3]`:                        "std is [1 0 3]",
		`"in_chans": 3|"aa": "blur"`:                 "model_args.aa is blur",
		`"in_chans": 3|"in_chans": 1`:                "model_args.in_chans is 1",
		`"num_classes": 3|"label_names": ["a", "b"]`: "label_names has 2 names",
		`"num_classes": 3|"global_pool": "max"`:      `global_pool is "max"`,
	} {
		from, to, _ := strings.Cut(change, "|")
		if _, err := read(strings.Replace(good, from, to, 1), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", to, err, want)
		}
	}
	for want, change := range map[string]func(map[string][]int){
		"it has no tensor layer2.0.bn1.weight":                  func(s map[string][]int) { delete(s, "layer2.0.bn1.weight") },
		"it has the tensor layer1.0.se.weight":                  func(s map[string][]int) { s["layer1.0.se.weight"] = []int{1} },
		"tensor layer1.0.conv1.weight is [64 64 5 5]":           func(s map[string][]int) { s["layer1.0.conv1.weight"] = []int{64, 64, 5, 5} },
		"it has no tensor conv1.weight: Cohort opens the resid": func(s map[string][]int) { delete(s, "conv1.weight") },
	} {
		if _, err := read("", change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// justShapes is a source without values.
type justShapes struct{ infos []safetensors.Info }

func (justShapes) Name() string                           { return "model" }
func (s justShapes) Infos() []safetensors.Info            { return s.infos }
func (justShapes) ReadTensor(name string, _ []byte) error { return fmt.Errorf("%s is not there", name) }
func (justShapes) ReadRange(name string, _ []byte, _ int64) error {
	return fmt.Errorf("%s is not there", name)
}
func (justShapes) Close() error { return nil }

// TestFreeze: layers are frozen by name, with the statistics of their norms; names of none, and
// of all, are errors.
func TestFreeze(t *testing.T) {
	build := func() *Classifier {
		m, err := NewClassifier(&nn.Build{Device: tensor.Meta}, ClassifierConfig{ModelType: visionResNet18, Size: 224, Channels: 3, Classes: []string{"a", "b"}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := build()
	if err := freeze(m, []string{"body"}); err != nil {
		t.Fatal(err)
	}
	trained := 0
	for _, p := range nn.Parameters(m.Model) {
		if !p.Frozen {
			trained++
		}
	}
	norms := 0
	for at, module := range nn.Modules(m.Model) {
		if n, ok := module.(*nn.BatchNorm2d); ok {
			if norms++; !n.Frozen {
				t.Errorf("the norm %s is not frozen", at)
			}
		}
	}
	if trained != 2 || norms != 20 {
		t.Errorf("%d parameters are trained, of %d norms", trained, norms)
	}
	if err := freeze(build(), []string{"layer9"}); err == nil || !strings.Contains(err.Error(), `no layer of the model is called "layer9"`) {
		t.Error(err)
	}
	if err := freeze(build(), []string{"body", "fc"}); err == nil || !strings.Contains(err.Error(), "nothing is left to train") {
		t.Error(err)
	}
}
