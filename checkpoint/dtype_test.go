// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/tensor"
)

var everyDType = []tensor.DType{
	tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16, tensor.Int64, tensor.Int32, tensor.Int8, tensor.Uint8, tensor.Bool,
}

func saved(t *testing.T, tensors map[string]*tensor.Tensor) *Checkpoint {
	t.Helper()
	dir := t.TempDir()
	if err := Save(t.Context(), dir, 1, func(w *Writer) error { return w.WriteTensors(ModelFile, maps.All(tensors), nil) }, 0); err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Path(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEveryDTypeRoundTrips: what is loaded has the bytes of what was saved, in
// dense tensors and in views.
func TestEveryDTypeRoundTrips(t *testing.T) {
	if len(fileDTypes) != len(everyDType)+1 {
		t.Fatalf("%d dtypes are saved, the test has %d", len(fileDTypes)-1, len(everyDType))
	}
	want, got := map[string]*tensor.Tensor{}, map[string]*tensor.Tensor{}
	values := tensor.FromFloat32([]float32{0, 1, 2, 100, 5, 7}, 2, 3)
	for _, dtype := range everyDType {
		x := values.To(dtype)
		want[dtype.String()], got[dtype.String()] = x, tensor.New(tensor.CPU(), dtype, 2, 3)
		want[dtype.String()+".T"], got[dtype.String()+".T"] = x.T(), tensor.New(tensor.CPU(), dtype, 4, 4).Narrow(0, 1, 3).Narrow(1, 1, 2)
	}
	if err := saved(t, want).LoadTensors(ModelFile, maps.All(got)); err != nil {
		t.Fatal(err)
	}
	for name, w := range want {
		if g := got[name].Contiguous(); !bytes.Equal(g.Buffer().Data, w.Contiguous().Buffer().Data) {
			t.Errorf("%s is %v, want %v", name, g, w)
		}
	}
}

func TestWiden(t *testing.T) {
	values := []float32{1, -2.5, 3, 0.125, 1.0078125, 65280}
	x := tensor.FromFloat32(values, 2, 3)
	c := saved(t, map[string]*tensor.Tensor{"a": x.To(tensor.BFloat16), "b": x.To(tensor.Float16), "c": x, "d": x.To(tensor.Float64)})
	target := func() map[string]*tensor.Tensor {
		return map[string]*tensor.Tensor{"a": tensor.Zeros(2, 3), "b": tensor.Zeros(3, 2).T(), "c": tensor.Zeros(2, 3), "d": tensor.New(tensor.CPU(), tensor.Float64, 2, 3)}
	}
	misshapen := func(got map[string]*tensor.Tensor, opts ...LoadOption) (names []string) {
		t.Helper()
		var e *StateDictError
		err := c.LoadTensors(ModelFile, maps.All(got), opts...)
		if !errors.As(err, &e) {
			t.Fatalf("loaded: %v", err)
		}
		for _, m := range e.Misshapen {
			names = append(names, m.Name)
			if m.Want.DType != fileDTypes[got[m.Name].DType()] {
				t.Errorf("%s is said to be %v in the model", m.Name, m.Want.DType)
			}
		}
		return names
	}
	if names := misshapen(target()); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("without Widen, %v do not fit", names)
	}
	got := target()
	if err := c.LoadTensors(ModelFile, maps.All(got), WithWidening()); err != nil {
		t.Fatal(err)
	}
	for name, g := range got {
		if !slices.Equal(g.Float32s(), values) {
			t.Errorf("%s is %v, want %v", name, g, values)
		}
	}
	// Nothing is rounded, and shapes must agree all the same.
	got = target()
	got["a"], got["c"], got["d"] = tensor.Zeros(6), x.To(tensor.BFloat16), x
	if names := misshapen(got, WithWidening()); !slices.Equal(names, []string{"a", "c", "d"}) {
		t.Errorf("%v do not fit", names)
	}
}

func TestNarrow(t *testing.T) {
	x := tensor.New(tensor.CPU(), tensor.Float64, 2, 3)
	for i, v := range []float64{1, 0.1, 1 + 1e-9, -3e-50, 1e39, 16777217} {
		binary.LittleEndian.PutUint64(x.Buffer().Data[8*i:], math.Float64bits(v))
	}
	c := saved(t, map[string]*tensor.Tensor{"a": x, "b": tensor.FromInt64([]int64{3}, 1)})
	got := map[string]*tensor.Tensor{"a": tensor.Zeros(2, 3), "b": tensor.Zeros(1)}
	var e *StateDictError
	if err := c.LoadTensors(ModelFile, maps.All(got), WithWidening()); !errors.As(err, &e) || len(e.Misshapen) != 2 {
		t.Errorf("without Narrow: %v", err)
	}
	if err := c.LoadTensors(ModelFile, maps.All(got), WithNarrowing()); !errors.As(err, &e) || len(e.Misshapen) != 1 || e.Misshapen[0].Name != "b" {
		t.Errorf("integers are taken: %v", err)
	}
	got["b"] = tensor.New(tensor.CPU(), tensor.Int64, 1)
	if err := c.LoadTensors(ModelFile, maps.All(got), WithNarrowing()); err != nil {
		t.Fatal(err)
	}
	// As torch.tensor([…], dtype=torch.float64).float() has them.
	want := []float32{1, 0.1, 1, float32(math.Copysign(0, -1)), float32(math.Inf(1)), 16777216}
	for i, v := range got["a"].Float32s() {
		if math.Float32bits(v) != math.Float32bits(want[i]) {
			t.Errorf("element %d is %v, want %v", i, v, want[i])
		}
	}
}

// TestBoolsAreChecked: a byte that is neither 0 nor 1 would count as a number.
func TestBoolsAreChecked(t *testing.T) {
	dir := t.TempDir()
	err := Save(t.Context(), dir, 1, func(w *Writer) error {
		return w.WriteSafetensors(ModelFile, []safetensors.Tensor{{Info: safetensors.Info{Name: "mask", DType: safetensors.Bool, Shape: []int{3}}, Data: []byte{0, 1, 7}}}, nil)
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Path(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	err = c.LoadTensors(ModelFile, maps.All(map[string]*tensor.Tensor{"mask": tensor.New(tensor.CPU(), tensor.Bool, 3)}))
	if err == nil || !strings.Contains(err.Error(), `"mask"`) || !strings.Contains(err.Error(), "element 2 is 7") {
		t.Errorf("got %v", err)
	}
}
