// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

const benchBytes = 512 << 20

func benchTensors() []safetensors.Tensor {
	tensors := make([]safetensors.Tensor, 64)
	for i := range tensors {
		data := make([]byte, benchBytes/len(tensors))
		for j := range data {
			data[j] = byte(i + j*j>>7)
		}
		tensors[i] = safetensors.Tensor{Info: safetensors.Info{Name: fmt.Sprint("blocks.", i, ".w"), DType: safetensors.F32, Shape: []int{len(data) / 4}}, Data: data}
	}
	return tensors
}

// BenchmarkSave saves 512 MiB and keeps one checkpoint. "durable" is Save as it
// is; "cached" leaves the bytes to the kernel; "plain" writes one file with the
// same bytes and nothing else, in pieces as Save does: the floor of "cached".
//
//	go test -run xxx -bench Save -benchtime 5x ./checkpoint
func BenchmarkSave(b *testing.B) {
	tensors := benchTensors()
	for _, c := range []struct {
		name   string
		noSync bool
	}{{"durable", false}, {"cached", true}} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(benchBytes)
			step := 0
			for b.Loop() {
				step++
				s := &save{dir: dir, step: step, keep: 1, noSync: c.noSync}
				err := s.run(context.Background(), func(w *Writer) error {
					return w.WriteSafetensors(ModelFile, tensors, nil)
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("plain", func(b *testing.B) {
		path := filepath.Join(b.TempDir(), "plain")
		b.SetBytes(benchBytes)
		for b.Loop() {
			f, err := os.Create(path)
			if err != nil {
				b.Fatal(err)
			}
			for _, t := range tensors {
				for p := t.Data; len(p) > 0; p = p[min(writeBytes, len(p)):] {
					if _, err := f.Write(p[:min(writeBytes, len(p))]); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkLoad verifies a checkpoint of 512 MiB, as Latest does, and then
// reads its tensors.
func BenchmarkLoad(b *testing.B) {
	tensors := benchTensors()
	dir := b.TempDir()
	err := (&save{dir: dir, step: 1, noSync: true}).run(context.Background(), func(w *Writer) error {
		return w.WriteSafetensors(ModelFile, tensors, nil)
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			if err := Verify(context.Background(), Path(dir, 1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		f, err := safetensors.Open(filepath.Join(Path(dir, 1), ModelFile))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		b.SetBytes(benchBytes)
		for b.Loop() {
			for _, t := range tensors {
				if err := f.ReadTensor(t.Name, t.Data); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
