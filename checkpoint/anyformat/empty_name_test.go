// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// TestEmptyName: a tensor whose key in PyTorch's dict is "" is not lost.
func TestEmptyName(t *testing.T) {
	for _, c := range []struct {
		name  string
		paths [][]any // the last one has the key ""
	}{
		{"alone", [][]any{{"a"}, {""}}},
		{"in a dict", [][]any{{"model", "a"}, {"model", ""}}},
		{"beside an optimizer", [][]any{{"a"}, {"optim", "state", "a", "exp_avg"}, {""}}},
		{"in a dict beside an optimizer", [][]any{{"model", "a"}, {"optim", "state", "a", "exp_avg"}, {"model", ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			var items []dcp.Item
			for i, path := range c.paths {
				items = append(items, dcp.Item{Path: path, Info: safetensors.Info{DType: safetensors.U8, Shape: []int{2}}, Box: mesh.Box{Start: []int{0}, Shape: []int{2}},
					Read: func(dst []byte, _ int64) error {
						for j := range dst {
							dst[j] = byte(i)
						}
						return nil
					}})
			}
			if err := dcp.Write(ctx, storage.Dir(dir), "dcp", items); err != nil {
				t.Fatal(err)
			}
			in, err := Open(ctx, at(filepath.Join(dir, "dcp")))
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			to := Location{Text: "run", Inside: storage.Dir(filepath.Join(dir, "run"))}
			if _, err := WriteCohort(ctx, to, in, in.Sections, CohortOptions{Step: 1}, nil); err != nil {
				t.Fatal(err)
			}
			again, err := Open(ctx, to)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			for _, in := range []*Input{in, again} {
				model, err := in.Section(ModelSection)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, info := range model.Source.Infos() {
					names = append(names, info.Name)
				}
				if slices.Sort(names); !slices.Equal(names, []string{"", "a"}) {
					t.Fatalf("%s: the model has %q", in.Kind, names)
				}
				got, last := make([]byte, 2), byte(len(c.paths)-1)
				if err := model.Source.ReadTensor("", got); err != nil || !bytes.Equal(got, []byte{last, last}) {
					t.Errorf("%s: the tensor is %v (%v)", in.Kind, got, err)
				}
			}
		})
	}
}
