// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	configFile = "config.json"
	// maxJSON bounds index and configuration; the largest index in use, of a
	// model of 10¹² parameters, has about ten megabytes.
	maxJSON = 64 << 20
)

// Folder is an opened folder of weights. It may be read by several goroutines.
type Folder struct {
	dir    string
	shards []*safetensors.File
	infos  []safetensors.Info
	where  map[string]*safetensors.File // by tensor
}

// Open opens the weights in dir: one file, or the shards of an index. Close it
// after use.
func Open(dir string) (_ *Folder, err error) {
	f := &Folder{dir: dir, where: map[string]*safetensors.File{}}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	single, err := safetensors.Open(filepath.Join(dir, singleFile))
	if err == nil {
		f.shards = []*safetensors.File{single}
		f.infos = single.Infos()
		for _, info := range f.infos {
			f.where[info.Name] = single
		}
		return f, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err := readJSON(filepath.Join(dir, indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("huggingface: %s has neither %s nor %s: is it a folder that save_pretrained wrote, with safetensors?", dir, singleFile, indexFile)
	}
	if err != nil {
		return nil, err
	}
	index, err := parseIndex(filepath.Join(dir, indexFile), text)
	if err != nil {
		return nil, err
	}
	return f, f.openShards(index)
}

// openShards opens the files that an index names. Which tensors there are they say
// themselves, as for Hugging Face's tools: an index may lack some, or promise some
// that only other models have, and who loads a model misses those that it wants.
func (f *Folder) openShards(index index) error {
	for _, name := range index.shards() {
		shard, err := safetensors.Open(filepath.Join(f.dir, name))
		if err != nil {
			return fmt.Errorf("huggingface: shard of %s: %w", filepath.Join(f.dir, indexFile), err)
		}
		f.shards = append(f.shards, shard)
		for _, info := range shard.Infos() {
			if other := f.where[info.Name]; other != nil {
				return index.errorf("the tensor %q is in two shards, %s and %s", info.Name, filepath.Base(other.Name()), name)
			}
			f.where[info.Name] = shard
			f.infos = append(f.infos, info)
		}
	}
	return nil
}

// Name returns the folder's path.
func (f *Folder) Name() string { return f.dir }

// Infos returns name, dtype and shape of every tensor, shard after shard.
func (f *Folder) Infos() []safetensors.Info { return slices.Clone(f.infos) }

// ReadTensor reads a tensor's bytes into dst, which must be exactly as long.
func (f *Folder) ReadTensor(name string, dst []byte) error {
	shard, err := f.find(name)
	if err != nil {
		return err
	}
	return shard.ReadTensor(name, dst)
}

// ReadRange reads len(dst) bytes of a tensor from its byte offset on.
func (f *Folder) ReadRange(name string, dst []byte, offset int64) error {
	shard, err := f.find(name)
	if err != nil {
		return err
	}
	return shard.ReadRange(name, dst, offset)
}

// find returns the file that holds a tensor.
func (f *Folder) find(name string) (*safetensors.File, error) {
	shard := f.where[name]
	if shard == nil {
		return nil, fmt.Errorf("huggingface: %s has no tensor %q", f.dir, name)
	}
	return shard, nil
}

// Config returns the text of config.json.
func (f *Folder) Config() ([]byte, error) { return readJSON(filepath.Join(f.dir, configFile)) }

// Close closes all files.
func (f *Folder) Close() error {
	var errs []error
	for _, s := range f.shards {
		errs = append(errs, s.Close())
	}
	f.shards = nil
	return errors.Join(errs...)
}

// readJSON reads a file of at most maxJSON bytes.
func readJSON(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("huggingface: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxJSON+1))
	if err != nil {
		return nil, fmt.Errorf("huggingface: %w", err)
	}
	if len(text) > maxJSON {
		return nil, fmt.Errorf("huggingface: %s has more than the %d bytes allowed", path, maxJSON)
	}
	return text, nil
}
