// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

var benchBytes = flag.Int("bytes", 512<<20, "bytes of the state of the benchmarks")

// benchRun calls do on ranks that each hold a shard of *benchBytes.
func benchRun(b *testing.B, ranks int, do func(ctx context.Context, g *dist.Group, s checkpoint.State) error) {
	err := dist.Spawn(b.Context(), ranks, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp", Size: ranks})
		if err != nil {
			return err
		}
		const numTensors, width = 16, 1024
		rows := *benchBytes / numTensors / width / 4 / ranks * ranks
		var parts []checkpoint.Part
		for i := range numTensors {
			local := tensor.Full(float64(i), rows/ranks, width)
			parts = append(parts, checkpoint.Part{Name: fmt.Sprintf("t%d", i), Tensor: mesh.Tensor{Local: local,
				Layout: mesh.Layout{Mesh: m, Shape: []int{rows, width}, Placements: []mesh.Placement{mesh.Shard(0)}}}})
		}
		return do(ctx, g, checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: parts}})
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSave is beside BenchmarkDisk, which writes the same bytes.
func BenchmarkSave(b *testing.B) {
	for _, ranks := range []int{1, 2} {
		b.Run(fmt.Sprint("ranks=", ranks), func(b *testing.B) {
			root := b.TempDir()
			b.SetBytes(int64(*benchBytes))
			benchRun(b, ranks, func(ctx context.Context, g *dist.Group, s checkpoint.State) error {
				b.ResetTimer()
				for i := range b.N {
					if err := checkpoint.Save(ctx, g, storage.Dir(root), i+1, s, checkpoint.WithRetention(checkpoint.Retention{Only: true})); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// BenchmarkDisk writes and syncs a file, as large as what BenchmarkSave writes.
func BenchmarkDisk(b *testing.B) {
	root := b.TempDir()
	b.SetBytes(int64(*benchBytes))
	data := tensor.Full(1, *benchBytes/4).Buffer().Data
	for i := range b.N {
		f, err := os.Create(filepath.Join(root, fmt.Sprint(i)))
		if err != nil {
			b.Fatal(err)
		}
		for at := 0; at < len(data); at += 4 << 20 {
			if _, err := f.Write(data[at:min(len(data), at+4<<20)]); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		f.Close()
		os.Remove(filepath.Join(root, fmt.Sprint(i-1)))
	}
}

// BenchmarkLoad reads what is cached, and touches and compares every byte.
func BenchmarkLoad(b *testing.B) {
	root := b.TempDir()
	b.SetBytes(int64(*benchBytes))
	benchRun(b, 1, func(ctx context.Context, g *dist.Group, s checkpoint.State) error {
		if err := checkpoint.Save(ctx, g, storage.Dir(root), 1, s); err != nil {
			return err
		}
		b.ResetTimer()
		for range b.N {
			if _, err := checkpoint.Load(ctx, g, storage.Dir(root), s); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkBlock is how long an asynchronous save keeps training waiting. It is beside
// BenchmarkCopy, which copies the same bytes.
func BenchmarkBlock(b *testing.B) {
	root := b.TempDir()
	b.SetBytes(int64(*benchBytes))
	benchRun(b, 1, func(ctx context.Context, g *dist.Group, s checkpoint.State) error {
		to := storage.Dir(root, storage.WithoutSync())
		saver, err := checkpoint.NewSaver(ctx, g, to, checkpoint.SaverOptions{Async: true, Keep: checkpoint.Retention{Only: true}})
		if err != nil {
			return err
		}
		save := func(step int) error {
			_, err := saver.Save(ctx, step, s)
			return err
		}
		if err := save(1); err != nil { // takes the memory
			return err
		}
		if err := saver.Wait(ctx); err != nil {
			return err
		}
		b.ResetTimer()
		for i := range b.N {
			if err := save(i + 2); err != nil {
				return err
			}
			b.StopTimer()
			if err := saver.Wait(ctx); err != nil {
				return err
			}
			b.StartTimer()
		}
		return saver.Close(ctx)
	})
}

// BenchmarkCopy copies memory.
func BenchmarkCopy(b *testing.B) {
	b.SetBytes(int64(*benchBytes))
	from, to := tensor.Full(1, *benchBytes/4).Buffer().Data, tensor.Full(2, *benchBytes/4).Buffer().Data
	for b.Loop() {
		copy(to, from)
	}
}
