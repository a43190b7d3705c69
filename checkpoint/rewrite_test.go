// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// bytesSource is a source in memory.
type bytesSource struct {
	infos []safetensors.Info
	data  map[string][]byte
}

func (s *bytesSource) Name() string              { return "memory" }
func (s *bytesSource) Infos() []safetensors.Info { return s.infos }
func (s *bytesSource) ReadTensor(name string, dst []byte) error {
	copy(dst, s.data[name])
	return nil
}

func (s *bytesSource) ReadRange(name string, dst []byte, offset int64) error {
	copy(dst, s.data[name][offset:])
	return nil
}

func randomSource(rng *rand.Rand, numTensors int) *bytesSource {
	s := &bytesSource{data: map[string][]byte{}}
	for i := range numTensors {
		info := safetensors.Info{Name: fmt.Sprint("t", i), DType: []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.I64, safetensors.Bool}[rng.IntN(4)]}
		for range rng.IntN(4) {
			info.Shape = append(info.Shape, rng.IntN(9))
		}
		b := make([]byte, info.NumBytes())
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		s.infos, s.data[info.Name] = append(s.infos, info), b
	}
	return s
}

// TestRewrite: whatever the mesh and the placements, the tensors are the same.
func TestRewrite(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for range 20 {
		src, optimizer := randomSource(rng, 1+rng.IntN(8)), randomSource(rng, rng.IntN(4))
		r := checkpoint.Rewriting{}
		if rng.IntN(4) > 0 {
			for i := range 1 + rng.IntN(2) {
				r.Mesh = append(r.Mesh, checkpoint.Axis{Name: fmt.Sprint("axis", i), Size: 1 + rng.IntN(3)})
			}
			seed := rng.Uint64()
			r.Place = func(_ string, info safetensors.Info) ([]mesh.Placement, error) {
				drawn := rand.New(rand.NewPCG(seed, uint64(len(info.Name)+10*int(info.Name[1]))))
				list := make([]mesh.Placement, len(r.Mesh))
				for i := range list {
					if n := len(info.Shape); n > 0 && drawn.IntN(3) > 0 {
						list[i] = mesh.Shard(drawn.IntN(n))
						if i == 0 && drawn.IntN(3) == 0 {
							list[i] = mesh.StridedShard(drawn.IntN(n), 2)
						}
					}
				}
				shape := make([]int, len(r.Mesh))
				for i, a := range r.Mesh {
					shape[i] = a.Size
				}
				if mesh.Check(info.Shape, shape, list) != nil { // some strides make no sense
					return nil, nil
				}
				return list, nil
			}
		} else {
			r.Ranks = 1 + rng.IntN(5)
		}
		to := storage.Dir(t.TempDir())
		s := checkpoint.State{Sources: map[string]checkpoint.Source{checkpoint.Model: src, checkpoint.Optimizer: optimizer}, Values: map[string]any{"x": 3}}
		if err := checkpoint.Rewrite(context.Background(), to, 7, s, r); err != nil {
			t.Fatalf("%+v: %v", r.Mesh, err)
		}
		c, err := checkpoint.Open(context.Background(), to, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		x := 0
		if err := c.Value("x", &x); err != nil || x != 3 || c.Step != 7 {
			t.Errorf("the value is %d, %v, the step %d", x, err, c.Step)
		}
		for section, want := range map[string]*bytesSource{checkpoint.Model: src, checkpoint.Optimizer: optimizer} {
			if len(want.infos) == 0 {
				continue
			}
			got, err := c.Source(section)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Infos()) != len(want.infos) {
				t.Errorf("%d tensors, want %d", len(got.Infos()), len(want.infos))
			}
			for _, info := range want.infos {
				b := make([]byte, info.NumBytes())
				if err := got.ReadTensor(info.Name, b); err != nil || !bytes.Equal(b, want.data[info.Name]) {
					t.Errorf("%+v: %v differs, %v", r.Mesh, info, err)
				}
			}
			if err := got.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestRewriteRankValues: values of the ranks stay where the number of ranks stays.
func TestRewriteRankValues(t *testing.T) {
	to := storage.Dir(t.TempDir())
	values := []map[string]json.RawMessage{{"generator": json.RawMessage("7")}, {"generator": json.RawMessage("8")}}
	for step, want := range []int{0, 0, 2, 0} {
		r := checkpoint.Rewriting{Ranks: step, RankValues: values}
		if err := checkpoint.Rewrite(t.Context(), to, step, checkpoint.State{}, r); err != nil {
			t.Fatal(err)
		}
		c, err := checkpoint.Open(t.Context(), to, checkpoint.StepName(step))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Manifest().RankValues; len(got) != want || want > 0 && string(got[1]["generator"]) != "8" {
			t.Errorf("%d ranks have the values %s, want those of %d ranks", step, got, want)
		}
	}
}

// TestRewriteLayout: the files, ranks and placements are those of the ranks that would save so.
func TestRewriteLayout(t *testing.T) {
	src := &bytesSource{infos: []safetensors.Info{{Name: "w", DType: safetensors.F32, Shape: []int{5, 4}}, {Name: "b", DType: safetensors.F32, Shape: []int{4}}},
		data: map[string][]byte{"w": make([]byte, 80), "b": make([]byte, 16)}}
	s := checkpoint.State{Sources: map[string]checkpoint.Source{checkpoint.Model: src}}
	r := checkpoint.Rewriting{Mesh: []checkpoint.Axis{{Name: "fsdp", Size: 3}}, Place: func(_ string, info safetensors.Info) ([]mesh.Placement, error) {
		if info.Name == "b" {
			return []mesh.Placement{mesh.Replicate()}, nil
		}
		return []mesh.Placement{mesh.Shard(0)}, nil
	}}
	dir := t.TempDir()
	to := storage.Dir(dir)
	if err := checkpoint.Rewrite(context.Background(), to, 1, s, r); err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(context.Background(), to, "")
	if err != nil {
		t.Fatal(err)
	}
	m := c.Manifest()
	var files []string
	for _, f := range m.Files {
		files = append(files, fmt.Sprint(f.Name, " ", f.Rank))
	}
	want := []string{"model-00001-of-00003.safetensors 0", "model-00002-of-00003.safetensors 1", "model-00003-of-00003.safetensors 2"}
	if !slices.Equal(files, want) || m.Ranks != 3 || len(m.Mesh) != 1 {
		t.Errorf("the files are %q of %d ranks on %v, want %q", files, m.Ranks, m.Mesh, want)
	}
	for _, tensor := range m.Section(checkpoint.Model).Tensors {
		if want := map[string]int{"w": 3, "b": 1}[tensor.Name]; len(tensor.Boxes) != want || len(tensor.Placements) != 1 {
			t.Errorf("%s has %d boxes, placements %q, want %d", tensor.Name, len(tensor.Boxes), tensor.Placements, want)
		}
	}
	if err := checkpoint.Rewrite(context.Background(), to, 1, s, r); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	for _, c := range []struct {
		r    checkpoint.Rewriting
		want string
	}{
		{checkpoint.Rewriting{Ranks: -1}, "-1 ranks"},
		{checkpoint.Rewriting{Ranks: 1 << 30}, "ranks: want 1 to"},
		{checkpoint.Rewriting{Mesh: []checkpoint.Axis{{Name: "a", Size: 0}}}, "the axis a has 0 ranks"},
		{checkpoint.Rewriting{Mesh: []checkpoint.Axis{{Name: "a", Size: 1 << 20}}}, "the axis a has 1048576 ranks"},
		{checkpoint.Rewriting{Mesh: r.Mesh, Place: func(string, safetensors.Info) ([]mesh.Placement, error) {
			return []mesh.Placement{mesh.Shard(3)}, nil
		}}, `tensor "w"`},
	} {
		if err := checkpoint.Rewrite(context.Background(), to, 2, s, c.r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("the error is %v, want %q", err, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("failures leave %q", left)
	}
}
