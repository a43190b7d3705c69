// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cpu"
	"github.com/cohort-ml/cohort/tensor"
)

func stateDict() map[string]*tensor.Tensor {
	w := tensor.FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	return map[string]*tensor.Tensor{
		"w":      w,
		"tied":   w,
		"w.T":    w.T(), // not dense
		"ids":    tensor.FromInt64([]int64{-1, 1 << 40}, 2),
		"scalar": tensor.Full(0.5),
		"none":   tensor.Zeros(0, 4),
	}
}

func TestTensorsRoundTrip(t *testing.T) {
	dir := t.TempDir()
	want := stateDict()
	err := Save(t.Context(), dir, 1, func(w *Writer) error {
		return w.WriteTensors(ModelFile, maps.All(want), map[string]string{"made": "here"})
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Path(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	// The target of "w" is dense; that of "w.T" is a view of something else.
	base := tensor.Zeros(4, 4)
	got := map[string]*tensor.Tensor{
		"w": tensor.Zeros(2, 3), "tied": tensor.Zeros(2, 3), "w.T": base.Narrow(0, 1, 3).Narrow(1, 1, 2),
		"ids": tensor.FromInt64([]int64{0, 0}, 2), "scalar": tensor.Zeros(), "none": tensor.Zeros(0, 4),
	}
	got["scalar"] = tensor.Full(0)
	if err := c.LoadTensors(ModelFile, maps.All(got)); err != nil {
		t.Fatal(err)
	}
	for name, w := range want {
		if name == "ids" {
			if !slices.Equal(got[name].Int64s(), w.Int64s()) {
				t.Errorf("%s is %v, want %v", name, got[name], w)
			}
			continue
		}
		if !slices.Equal(got[name].Float32s(), w.Float32s()) {
			t.Errorf("%s is %v, want %v", name, got[name], w)
		}
	}
	if got, want := base.Float32s(), []float32{0, 0, 0, 0, 0, 1, 4, 0, 0, 2, 5, 0, 0, 3, 6, 0}; !slices.Equal(got, want) {
		t.Errorf("around the view: %v, want %v", got, want)
	}
}

// TestLoadOtherModel: one error with every difference, and nothing is changed.
// blind is a device whose memory the CPU does not see.
type blind struct{ device.Device }

// TestTensorsOfABlindDevice: they are copied to the CPU and back.
func TestTensorsOfABlindDevice(t *testing.T) {
	dev := &blind{cpu.New(1)}
	there := map[string]*tensor.Tensor{}
	for name, w := range stateDict() {
		there[name] = w.ToDevice(dev)
	}
	there["half"] = tensor.On(dev).Full(0.5, 3)
	c := saved(t, there)
	got := map[string]*tensor.Tensor{"w.T": tensor.New(dev, tensor.Float32, 2, 3).T(), "half": tensor.New(dev, tensor.Float32, 3)}
	for name, w := range there {
		if got[name] == nil {
			got[name] = tensor.New(dev, w.DType(), w.Shape()...)
		}
	}
	if err := c.LoadTensors(ModelFile, maps.All(got)); err != nil {
		t.Fatal(err)
	}
	for name, w := range there {
		if got[name].Device() != dev || !slices.Equal(got[name].To(tensor.Float64).Float32s(), w.To(tensor.Float64).Float32s()) {
			t.Errorf("%s is %v, want %v", name, got[name], w)
		}
	}
}

func TestLoadOtherModel(t *testing.T) {
	dir := t.TempDir()
	err := Save(t.Context(), dir, 1, func(w *Writer) error {
		return w.WriteTensors(ModelFile, maps.All(stateDict()), nil)
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Path(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	same := tensor.Zeros(2, 3)
	err = c.LoadTensors(ModelFile, maps.All(map[string]*tensor.Tensor{
		"w": same, "w.T": tensor.Zeros(2, 3), "ids": tensor.Zeros(2), "head": tensor.Zeros(1), "scalar": tensor.Zeros(1),
	}))
	var e *StateDictError
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	var misshapen []string
	for _, m := range e.Misshapen {
		misshapen = append(misshapen, m.Name)
	}
	if !slices.Equal(e.Missing, []string{"head"}) || !slices.Equal(e.Extra, []string{"none", "tied"}) || !slices.Equal(misshapen, []string{"ids", "scalar", "w.T"}) {
		t.Errorf("got %v", err)
	}
	if same.SumSquares() != 0 {
		t.Error("a tensor was filled all the same")
	}
}

// TestWhoseState: the message is about what the file is of.
func TestWhoseState(t *testing.T) {
	for file, want := range map[string]string{
		ModelFile:               "does not fit the model (1 missing, 0 extra, 0 misshapen): load it into the model that",
		"step/" + OptimizerFile: "does not fit the optimizer (1 missing, 0 extra, 0 misshapen): load it into the optimizer that",
	} {
		err := &StateDictError{File: file, Missing: []string{"a"}}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}

func TestTensorsRefused(t *testing.T) {
	dir := t.TempDir()
	twice := func(yield func(string, *tensor.Tensor) bool) {
		for range 2 {
			if !yield("a", tensor.Zeros(1)) {
				return
			}
		}
	}
	for _, c := range []struct {
		want    string
		tensors Tensors
	}{
		{`"a" is there twice`, twice},
		{`"a" is nil`, maps.All(map[string]*tensor.Tensor{"a": nil})},
		{`"a" is on the meta device`, maps.All(map[string]*tensor.Tensor{"a": tensor.New(tensor.Meta, tensor.Float32, 2)})},
	} {
		err := Save(t.Context(), dir, 1, func(w *Writer) error { return w.WriteTensors(ModelFile, c.tensors, nil) }, 0)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if _, err := Describe(c.tensors); err == nil {
			t.Errorf("%s: described", c.want)
		}
	}
}

// TestLoadGolden fills tensors from the file that the reference library wrote.
func TestLoadGolden(t *testing.T) {
	f, err := safetensors.Open(filepath.Join("safetensors", "testdata", "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var e *StateDictError
	err = LoadTensors(f, maps.All(map[string]*tensor.Tensor{"w": tensor.Zeros(3, 5), "half": tensor.Zeros(6)}))
	if !errors.As(err, &e) || len(e.Misshapen) != 1 || e.Misshapen[0].Name != "half" || len(e.Extra) != 8 {
		t.Errorf("got %v", err)
	}
}

// TestLoadCutFile: a file cut after its checkpoint was opened is an error that
// names the file and the tensor.
func TestLoadCutFile(t *testing.T) {
	dir := t.TempDir()
	err := Save(t.Context(), dir, 1, func(w *Writer) error {
		return w.WriteTensors(ModelFile, maps.All(stateDict()), nil)
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Path(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(c.Path, ModelFile), 100); err != nil {
		t.Fatal(err)
	}
	var format *safetensors.FormatError
	if err := c.LoadTensors(ModelFile, maps.All(stateDict())); !errors.As(err, &format) || !format.Truncated {
		t.Errorf("got %v", err)
	}
}

func TestLongListsAreCutInMessages(t *testing.T) {
	e := &StateDictError{File: "f", Missing: slices.Repeat([]string{"layer"}, 5000), Extra: []string{"more"}}
	if n := strings.Count(e.Error(), "missing    layer"); n != 100 || !strings.Contains(e.Error(), "and 4900 more") || !strings.Contains(e.Error(), "extra      more") {
		t.Errorf("%d of 5000 names in a message of %d bytes", n, len(e.Error()))
	}
}
