// SPDX-License-Identifier: Apache-2.0

package huggingface_test

import (
	"context"
	"errors"
	"flag"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	benchFolder = flag.String("folder", "", "folder of weights that the benchmarks read (see tools/compare_huggingface.py)")
	benchRanks  = flag.Int("ranks", 2, "number of ranks of the benchmarks that shard")
)

// counted counts the bytes that are read from the files of a storage.
type counted struct {
	storage.Storage
	bytes atomic.Int64
}

type countedObject struct {
	storage.Object
	in *counted
}

func (c *counted) Open(ctx context.Context, name string) (storage.Object, error) {
	o, err := c.Storage.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return countedObject{o, c}, nil
}

// ReadBytes is that of the object within: the way of reading depends on it.
func (o countedObject) ReadBytes() int { return storage.ReadBytes(o.Object) }

func (o countedObject) ReadAt(b []byte, at int64) (int, error) {
	n, err := o.Object.ReadAt(b, at)
	o.in.bytes.Add(int64(n))
	return n, err
}

// openFolder opens the folder of the flag.
func openFolder(b *testing.B, from storage.Storage) *huggingface.Folder {
	f, err := huggingface.OpenIn(b.Context(), from, *benchFolder)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// weightBytes returns the bytes of the folder's files.
func weightBytes(b *testing.B) (n int64) {
	if *benchFolder == "" {
		b.Skip("no -folder")
	}
	f := openFolder(b, storage.Dir(*benchFolder))
	defer f.Close()
	for _, shard := range f.Files() {
		n += shard.Size()
	}
	return n
}

// BenchmarkFolder opens a folder, loads all of it on one rank, and loads it on several ranks that
// split each matrix by rows or by columns. read/size is what all ranks together read, by the size
// of the files.
func BenchmarkFolder(b *testing.B) {
	size := weightBytes(b)
	b.Run("open", func(b *testing.B) {
		for range b.N {
			f := openFolder(b, storage.Dir(*benchFolder))
			if len(f.Infos()) == 0 {
				b.Fatal("no tensors")
			}
			f.Close()
		}
	})
	b.Run("load", func(b *testing.B) { benchLoad(b, size, 1, 0) })
	b.Run("rows", func(b *testing.B) { benchLoad(b, size, *benchRanks, 0) })
	b.Run("columns", func(b *testing.B) { benchLoad(b, size, *benchRanks, 1) })
}

// benchLoad loads the folder on ranks that split each matrix along a dim; of other tensors
// each rank has the whole.
func benchLoad(b *testing.B, size int64, ranks, along int) {
	b.SetBytes(size)
	from := &counted{Storage: storage.Dir(*benchFolder)}
	err := dist.Spawn(b.Context(), ranks, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "ranks", Size: ranks})
		if err != nil {
			return err
		}
		first, err := huggingface.OpenIn(ctx, from, *benchFolder)
		if err != nil {
			return err
		}
		var parts []checkpoint.Part
		for _, info := range first.Infos() {
			layout := mesh.Layout{Mesh: m, Shape: info.Shape, Placements: []mesh.Placement{mesh.Replicate()}}
			if len(info.Shape) == 2 {
				layout.Placements[0] = mesh.Shard(along)
			}
			shape, err := layout.LocalShape()
			if err != nil {
				return err
			}
			local := tensor.New(tensor.CPU(), dtypes[info.DType], shape...)
			local.Fill(1) // so that its pages are there
			parts = append(parts, checkpoint.Part{Name: info.Name, Tensor: mesh.Tensor{Local: local, Layout: layout}})
		}
		if err := first.Close(); err != nil {
			return err
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			from.bytes.Store(0)
			b.ResetTimer()
		}
		for range b.N {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			f, err := huggingface.OpenIn(ctx, from, *benchFolder)
			if err != nil {
				return err
			}
			if err := errors.Join(checkpoint.LoadParts(f, parts), f.Close()); err != nil {
				return err
			}
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(from.bytes.Load())/float64(size)/float64(b.N), "read/size")
}

// dtypes are those of the folders that are measured.
var dtypes = map[safetensors.DType]tensor.DType{safetensors.F32: tensor.Float32, safetensors.BF16: tensor.BFloat16}
