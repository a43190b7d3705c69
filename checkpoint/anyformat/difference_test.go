// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// memory is a source in memory.
type memory struct {
	infos []safetensors.Info
	data  map[string][]byte
	fail  int64 // the offset from which reading fails, if it is positive
}

func (m *memory) Name() string              { return "memory" }
func (m *memory) Infos() []safetensors.Info { return m.infos }

func (m *memory) ReadTensor(name string, dst []byte) error { return m.ReadRange(name, dst, 0) }

var errBroken = errors.New("the disk is broken")

func (m *memory) ReadRange(name string, dst []byte, offset int64) error {
	if len(dst) > PieceBytes {
		return fmt.Errorf("%d bytes at once", len(dst))
	}
	if m.fail > 0 && offset >= m.fail {
		return errBroken
	}
	if copy(dst, m.data[name][offset:]) < len(dst) {
		return errors.New("beyond the end")
	}
	return nil
}

func (m *memory) add(name string, d safetensors.DType, shape []int, data []byte) {
	if m.data == nil {
		m.data = make(map[string][]byte)
	}
	m.infos = append(m.infos, safetensors.Info{Name: name, DType: d, Shape: shape})
	m.data[name] = data
}

func floats(v ...float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func TestPieces(t *testing.T) {
	n := PieceBytes*2 + 12
	data := make([]byte, n)
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	m := &memory{}
	m.add("x", safetensors.F32, []int{n / 4}, data)
	var got []byte
	err := Pieces(context.Background(), m, m.infos[0], func(b []byte, offset int64) error {
		if offset != int64(len(got)) {
			t.Errorf("a piece at %d after %d bytes", offset, len(got))
		}
		got = append(got, b...)
		return nil
	})
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes, %v", len(got), n, err)
	}
	m.fail = PieceBytes
	if err := Pieces(context.Background(), m, m.infos[0], func([]byte, int64) error { return nil }); !errors.Is(err, errBroken) {
		t.Errorf("the error of the source became %v", err)
	}
	m.fail = 0
	stop := errors.New("enough")
	if err := Pieces(context.Background(), m, m.infos[0], func([]byte, int64) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the error of the user became %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	err = Pieces(ctx, m, m.infos[0], func([]byte, int64) error { cancel(stop); return nil })
	if !errors.Is(err, stop) {
		t.Errorf("the end of the context became %v", err)
	}
}

// TestCompare compares with the same sums, computed from whole tensors.
func TestCompare(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	n := PieceBytes/4 + 5000 // more than one piece
	x, y := make([]float32, n), make([]float32, n)
	var largest, squaresDiff, squares float64
	var changed, place int
	for i := range x {
		x[i] = float32(rng.NormFloat64())
		y[i] = x[i]
		if rng.IntN(1000) == 0 {
			y[i] += float32(rng.NormFloat64()) * 0.01
		}
		d := float64(x[i]) - float64(y[i])
		squares += float64(x[i]) * float64(x[i])
		squaresDiff += d * d
		if d != 0 {
			changed++
		}
		if math.Abs(d) > largest {
			largest, place = math.Abs(d), i
		}
	}
	a, b := &memory{}, &memory{}
	a.add("x", safetensors.F32, []int{n}, floats(x...))
	b.add("x", safetensors.F32, []int{n}, floats(y...))
	d, err := Compare(context.Background(), a, b, nil)
	if err != nil || len(d.Tensors) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	got := d.Tensors[0]
	if got.NumDiffer != int64(changed) || got.Largest != largest || got.At != int64(place) || math.Abs(got.Relative/math.Sqrt(squaresDiff/squares)-1) > 1e-9 {
		t.Errorf("%+v; want %d changed, largest %g at %d, relative %g", got, changed, largest, place, math.Sqrt(squaresDiff/squares))
	}
}

func TestCompareKinds(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	a, b := &memory{}, &memory{}
	both := func(name string, da, db safetensors.DType, sa, sb []int, xa, xb []byte) {
		a.add(name, da, sa, xa)
		b.add(name, db, sb, xb)
	}
	f32, bf16 := safetensors.F32, safetensors.BF16
	both("same", f32, f32, []int{2}, []int{2}, floats(1, nan), floats(1, nan))
	both("negative zero", f32, f32, []int{1}, []int{1}, floats(0), []byte{0, 0, 0, 0x80})
	both("nan", f32, f32, []int{2, 2}, []int{2, 2}, floats(1, 2, 3, nan), floats(1, 2, 3, 4))
	both("infinite", f32, f32, []int{1}, []int{1}, floats(inf), floats(inf))
	both("shape", f32, f32, []int{2}, []int{2, 1}, floats(1, 2), floats(1, 2))
	both("dtype", f32, bf16, []int{2}, []int{2}, floats(1, -2), []byte{0x80, 0x3f, 0, 0xc0})
	both("from zero", f32, f32, []int{1}, []int{1}, floats(0), floats(3))
	both("opaque", safetensors.F4, safetensors.F4, []int{4}, []int{4}, []byte{1, 2}, []byte{1, 3})
	both("empty", f32, f32, []int{0, 3}, []int{0, 3}, nil, nil)
	a.add("only a", f32, []int{1}, floats(1))
	b.add("only b", f32, []int{1}, floats(1))
	d, err := Compare(context.Background(), a, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]TensorDifference{}
	for _, x := range d.Tensors {
		found[x.Name] = x
	}
	for _, name := range []string{"same", "negative zero", "infinite", "empty"} {
		if _, there := found[name]; there {
			t.Errorf("%s counts as different: %+v", name, found[name])
		}
	}
	if x := found["nan"]; !math.IsInf(x.Largest, 1) || !slices.Equal(Index(x.At, x.Shapes[0]), []int{1, 1}) || x.NumDiffer != 1 {
		t.Errorf("nan: %+v", x)
	}
	if x := found["shape"]; !x.Misshapen() {
		t.Errorf("shape: %+v", x)
	}
	if x := found["dtype"]; x.NumDiffer != 0 || x.DTypes[1] != bf16 || x.Relative != 0 {
		t.Errorf("dtype: %+v", x)
	}
	if x := found["from zero"]; !math.IsInf(x.Relative, 1) || x.Largest != 3 {
		t.Errorf("from zero: %+v", x)
	}
	if x := found["opaque"]; !x.Opaque || x.NumDiffer != 1 {
		t.Errorf("opaque: %+v", x)
	}
	if len(d.OnlyA) != 1 || len(d.OnlyB) != 1 || d.NumEqual != 4 || d.NumCompared != 9 || d.Equal() {
		t.Errorf("%+v", d)
	}
}
