// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// WriteOptions say how [Write] lays out a folder.
type WriteOptions struct {
	// NumShards is the number of files; 0 is as many as MaxShardBytes asks for.
	NumShards int
	// MaxShardBytes is as in [SaveOptions].
	MaxShardBytes int64
	// Files are written as they are, after the weights: config.json, tokenizer.json.
	Files map[string][]byte
}

// Write writes a folder of tensors of which not even one need be in memory: write
// writes the bytes of a tensor, in pieces. The files of weights come first, then the
// index, then o.Files, so that a folder that was given up is not taken for a whole one. Who wants the folder
// to appear at one instant gives it another name first.
func Write(ctx context.Context, to storage.Storage, infos []safetensors.Info, o WriteOptions, write func(w io.Writer, info safetensors.Info) error) error {
	shards, err := o.shards(infos)
	if err != nil {
		return err
	}
	x := index{WeightMap: map[string]string{}}
	for i, list := range shards {
		name := shardName(i, len(shards))
		for _, info := range list {
			x.WeightMap[info.Name] = name
			x.Metadata.TotalSize += info.NumBytes()
		}
		err := create(ctx, to, name, func(w io.Writer) error {
			return safetensors.WriteFrom(w, list, map[string]string{"format": "pt"}, write)
		})
		if err != nil {
			return err
		}
	}
	files := maps.Clone(o.Files)
	if files == nil {
		files = map[string][]byte{}
	}
	names := slices.Sorted(maps.Keys(files))
	if len(shards) > 1 {
		text, err := json.MarshalIndent(x, "", "  ")
		if err != nil {
			return err
		}
		files[indexFile] = append(text, '\n')
		names = slices.Insert(names, 0, indexFile)
	}
	for _, name := range names {
		if name != path.Base(name) {
			return fmt.Errorf("huggingface: the name of a file, %q, has a path in it", name)
		}
		if err := storage.WriteFile(ctx, to, name, files[name]); err != nil {
			return err
		}
	}
	return nil
}

// create writes a file that is there whole or not at all.
func create(ctx context.Context, to storage.Storage, name string, write func(w io.Writer) error) error {
	f, err := to.Create(ctx, name)
	if err != nil {
		return err
	}
	defer f.Abort()
	if err := write(f); err != nil {
		return fmt.Errorf("huggingface: writing %s: %w", storage.At(to, name), err)
	}
	return f.Close()
}

// shardName returns the name of file i of n.
func shardName(i, n int) string {
	if n == 1 {
		return singleFile
	}
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
}

// shards cuts the tensors, in their order, into files.
func (o WriteOptions) shards(infos []safetensors.Info) ([][]safetensors.Info, error) {
	if o.NumShards == 0 {
		if o.MaxShardBytes == 0 {
			o.MaxShardBytes = DefaultShardBytes
		}
		if o.MaxShardBytes < 0 {
			return nil, fmt.Errorf("huggingface: shards of at most %d bytes: want a positive number", o.MaxShardBytes)
		}
		return split(infos, o.MaxShardBytes), nil
	}
	if o.NumShards < 0 || o.NumShards > maxShards || o.NumShards > max(len(infos), 1) {
		return nil, fmt.Errorf("huggingface: %d files for %d tensors: want 1 to %d", o.NumShards, len(infos), max(1, min(len(infos), maxShards)))
	}
	return splitEvenly(infos, o.NumShards), nil
}

// splitEvenly cuts the tensors, in their order, into n shards, none of which is empty,
// of about the same bytes.
func splitEvenly(infos []safetensors.Info, n int) [][]safetensors.Info {
	var total, done int64
	for _, info := range infos {
		total += info.NumBytes()
	}
	shards := make([][]safetensors.Info, 0, n)
	for i := range n {
		left := n - i - 1 // shards that need a tensor each
		end := total / int64(n) * int64(i+1)
		var shard []safetensors.Info
		for len(infos) > left {
			size := infos[0].NumBytes()
			// The tensor at the border goes where more of it lies.
			if left > 0 && len(shard) > 0 && done+size/2 >= end {
				break
			}
			shard, infos, done = append(shard, infos[0]), infos[1:], done+size
		}
		shards = append(shards, shard)
	}
	return shards
}
