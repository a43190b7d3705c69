// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/tensor"
)

// DefaultShardBytes is how large a shard may become, as in Hugging Face's tools.
const DefaultShardBytes = 5_000_000_000

// SaveOptions say what goes into the folder beside the tensors.
type SaveOptions struct {
	// MaxShardBytes bounds the tensors of one file; 0 is DefaultShardBytes. A
	// tensor that is larger has a file of its own.
	MaxShardBytes int64
	// Weights is what the file of the tensors is called, "" for
	// model.safetensors; of another name there is one, without shards.
	Weights string
	// Files are written as they are: config.json, tokenizer.json.
	Files map[string][]byte
}

// Save writes tensors to dir, which must not exist yet or be empty: one file,
// or shards with their index if they are too large for one. The folder appears
// complete or not at all.
func Save(dir string, tensors checkpoint.Tensors, o SaveOptions) (err error) {
	if o.MaxShardBytes == 0 {
		o.MaxShardBytes = DefaultShardBytes
	}
	if o.MaxShardBytes < 1 {
		return fmt.Errorf("huggingface: shards of at most %d bytes: want a positive number", o.MaxShardBytes)
	}
	if o.Weights == "" {
		o.Weights = singleFile
	} else {
		o.MaxShardBytes = math.MaxInt64
	}
	infos, err := checkpoint.Describe(tensors)
	if err != nil {
		return err
	}
	values := map[string]*tensor.Tensor{}
	for name, t := range tensors {
		values[name] = t
	}
	dir = filepath.Clean(dir)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("huggingface: %s is not empty: give the weights a folder of their own: %w", dir, fs.ErrExist)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("huggingface: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return fmt.Errorf("huggingface: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".tmp-")
	if err != nil {
		return fmt.Errorf("huggingface: %w", err)
	}
	defer os.RemoveAll(temp) // gone after the rename
	if err := os.Chmod(temp, 0o755); err != nil {
		return fmt.Errorf("huggingface: %w", err)
	}
	if err := writeAll(temp, split(infos, o.MaxShardBytes), values, o); err != nil {
		return fmt.Errorf("huggingface: saving to %s: %w", dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("huggingface: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil {
		return fmt.Errorf("huggingface: %w", err)
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("huggingface: %s is in place, but may not survive a power failure: %w", dir, err)
	}
	return nil
}

func syncDir(path string) (err error) {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// split cuts the tensors, in their order, into shards.
func split(infos []safetensors.Info, maxBytes int64) [][]safetensors.Info {
	shards := [][]safetensors.Info{nil}
	size := int64(0)
	for _, info := range infos {
		n := info.NumBytes()
		if last := len(shards) - 1; len(shards[last]) > 0 && size+n > maxBytes {
			shards, size = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], info)
		size += n
	}
	return shards
}

func writeAll(dir string, shards [][]safetensors.Info, values map[string]*tensor.Tensor, o SaveOptions) error {
	x := index{WeightMap: map[string]string{}}
	for i, infos := range shards {
		name := o.Weights
		if len(shards) > 1 {
			name = shardName(i, len(shards))
		}
		raw := make([]safetensors.Tensor, len(infos))
		for j, info := range infos {
			// The dense copy must live as long as its bytes are used.
			t := values[info.Name].Detach().Contiguous()
			defer runtime.KeepAlive(t)
			raw[j] = safetensors.Tensor{Info: info, Data: t.Buffer().Data}
			x.WeightMap[info.Name] = name
			x.Metadata.TotalSize += info.NumBytes()
		}
		err := writeFile(filepath.Join(dir, name), func(w io.Writer) error {
			return safetensors.Write(w, raw, map[string]string{"format": "pt"})
		})
		if err != nil {
			return err
		}
	}
	if len(shards) > 1 {
		text, err := json.MarshalIndent(x, "", "  ")
		if err != nil {
			return err
		}
		if err := writeBytes(filepath.Join(dir, indexFile), append(text, '\n')); err != nil {
			return err
		}
	}
	for name, data := range o.Files {
		if name != filepath.Base(name) {
			return fmt.Errorf("the name of a file, %q, has a path in it", name)
		}
		if err := writeBytes(filepath.Join(dir, name), data); err != nil {
			return err
		}
	}
	return nil
}

func writeBytes(path string, data []byte) error {
	return writeFile(path, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// writeFile writes a file that is on the disk when it returns.
func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}
