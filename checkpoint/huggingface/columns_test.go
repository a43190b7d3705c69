// SPDX-License-Identifier: Apache-2.0

package huggingface_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/tensor"
)

// TestColumnsAreReadOnce: ranks that each read some columns of a matrix together read its file about
// once.
func TestColumnsAreReadOnce(t *testing.T) {
	const rows, columns, ranks = 256, 1024, 4
	x := tensor.ArangeOf(tensor.CPU(), tensor.Float32, 0, rows*columns, 1).Reshape(rows, columns)
	dir := filepath.Join(t.TempDir(), "model")
	if err := huggingface.Save(dir, func(yield func(string, *tensor.Tensor) bool) { yield("w", x) }, huggingface.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	from := &counted{Storage: storage.Dir(dir)}
	size, whole := int64(0), x.Buffer().Data
	for rank := range ranks {
		f, err := huggingface.OpenIn(t.Context(), from, dir)
		if err != nil {
			t.Fatal(err)
		}
		size = f.Files()[0].Size()
		const width = columns / ranks
		got := make([]byte, rows*width*4)
		if err := f.ReadBox("w", []int{0, rank * width}, []int{rows, width}, got); err != nil {
			t.Fatal(err)
		}
		for row := range rows {
			at := (row*columns + rank*width) * 4
			if !bytes.Equal(got[row*width*4:][:width*4], whole[at:at+width*4]) {
				t.Fatalf("rank %d: row %d is otherwise", rank, row)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if read := from.bytes.Load(); float64(read) > 1.02*float64(size) {
		t.Errorf("%d ranks have read %d bytes of a file of %d", ranks, read, size)
	}
}
