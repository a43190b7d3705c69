// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
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
	name    string
	from    storage.Storage
	shards  []*safetensors.File
	objects []storage.Object // of the shards, in the same order
	order   []*stored
	where   map[string]*stored // by tensor
}

// Open opens the weights in the directory dir, as [OpenIn] does.
func Open(dir string) (*Folder, error) { return OpenIn(context.Background(), storage.Dir(dir), dir) }

// OpenIn opens the weights in a storage, which name stands for in errors: one file, or
// the shards of an index. Without both, all files of weights that the storage lists are
// shards. Close it after use.
func OpenIn(ctx context.Context, from storage.Storage, name string) (_ *Folder, err error) {
	f := &Folder{name: name, from: from, where: map[string]*stored{}}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	switch err := f.openShard(ctx, singleFile); {
	case err == nil:
		return f, f.check()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	text, err := f.ReadFile(ctx, indexFile)
	if errors.Is(err, fs.ErrNotExist) {
		return f, f.openListed(ctx)
	}
	if err != nil {
		return nil, err
	}
	index, err := parseIndex(f.path(indexFile), text)
	if err != nil {
		return nil, err
	}
	return f, f.openShards(ctx, index)
}

// path returns how errors call a file of the folder.
func (f *Folder) path(name string) string { return strings.TrimSuffix(f.name, "/") + "/" + name }

// openShard opens a file. Two files that have the same tensor are an error.
func (f *Folder) openShard(ctx context.Context, name string) error {
	o, err := f.from.Open(ctx, name)
	if err != nil {
		return fmt.Errorf("huggingface: %s: %w", f.path(name), err)
	}
	shard, err := safetensors.NewFile(o, o.Size(), f.path(name))
	if err != nil {
		return errors.Join(err, o.Close())
	}
	f.shards, f.objects = append(f.shards, shard), append(f.objects, o)
	starts, err := parseSharding(shard)
	if err != nil {
		return err
	}
	for _, e := range shard.Entries() {
		t := f.where[e.Name]
		if t == nil {
			t = &stored{info: e.Info}
			t.info.Shape = slices.Clone(e.Shape)
			f.where[e.Name], f.order = t, append(f.order, t)
		}
		if err := t.add(storedBox{shard, o, e, starts[e.Name]}); err != nil {
			return fmt.Errorf("huggingface: %s: the tensor %q %w", f.name, e.Name, err)
		}
	}
	return nil
}

// check reports tensors of which boxes are missing.
func (f *Folder) check() error {
	for _, t := range f.order {
		if err := t.check(); err != nil {
			return fmt.Errorf("huggingface: %s: the tensor %q %w", f.name, t.info.Name, err)
		}
	}
	return nil
}

// baseName returns the name of a file without its folder.
func baseName(f *safetensors.File) string { return path.Base(f.Name()) }

// openShards opens the files that an index names. Which tensors there are they say
// themselves, as for Hugging Face's tools: an index may lack some, or promise some
// that only other models have, and who loads a model misses those that it wants.
func (f *Folder) openShards(ctx context.Context, index index) error {
	for _, name := range index.shards() {
		if err := f.openShard(ctx, name); err != nil {
			return fmt.Errorf("huggingface: shard of %s: %w", f.path(indexFile), err)
		}
	}
	return f.check()
}

// openListed opens all files of weights in a folder without an index.
func (f *Folder) openListed(ctx context.Context) error {
	entries, err := f.from.List(ctx, "")
	if err != nil {
		return fmt.Errorf("huggingface: %s: %w", f.name, err)
	}
	// A checkpoint has files of other sections too, such as the optimizer's.
	prefix := ""
	if slices.ContainsFunc(entries, func(e storage.Entry) bool { return e.Name == storage.ManifestName }) {
		prefix = "model-"
	}
	var names []string
	for _, e := range entries {
		if !e.IsFolder && strings.HasPrefix(e.Name, prefix) && strings.HasSuffix(e.Name, ".safetensors") && !strings.HasPrefix(e.Name, ".") {
			names = append(names, e.Name)
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("huggingface: %s has neither %s nor %s: is it a folder that save_pretrained wrote, with safetensors?", f.name, singleFile, indexFile)
	case len(names) > maxShards:
		return fmt.Errorf("huggingface: %s has %d files of weights, more than the %d allowed", f.name, len(names), maxShards)
	}
	slices.Sort(names)
	if missing := missingShard(names); missing != "" {
		return fmt.Errorf("huggingface: %s lacks the shard %s, which the names of the others promise: copy it again", f.name, missing)
	}
	for _, name := range names {
		if err := f.openShard(ctx, name); err != nil {
			return err
		}
	}
	return f.check()
}

// numbered finds the numbers in the name of a shard.
var numbered = regexp.MustCompile(`^(.*-)(\d{5})-of-(\d{5})(\.safetensors)$`)

// missingShard returns the name of a shard that is not among sorted names, though they say
// how many there are; "" if none is missing.
func missingShard(names []string) string {
	seen := map[string]bool{} // without the number of the shard
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m == nil || seen[m[1]+m[3]] {
			continue
		}
		seen[m[1]+m[3]] = true
		n, _ := strconv.Atoi(m[3])
		first, _ := strconv.Atoi(m[2])
		first = min(first, 1) // some tools count from 0
		for i := range n {
			want := fmt.Sprintf("%s%05d-of-%s%s", m[1], i+first, m[3], m[4])
			if _, found := slices.BinarySearch(names, want); !found {
				return want
			}
		}
	}
	return ""
}

// Name returns the folder's path.
func (f *Folder) Name() string { return f.name }

// Files returns the opened files of weights, shard after shard.
func (f *Folder) Files() []*safetensors.File { return slices.Clone(f.shards) }

// Infos returns name, dtype and shape of every tensor, shard after shard.
func (f *Folder) Infos() []safetensors.Info {
	infos := make([]safetensors.Info, len(f.order))
	for i, t := range f.order {
		infos[i] = t.info
	}
	return infos
}

// ReadTensor reads a tensor's bytes into dst, which must be exactly as long.
func (f *Folder) ReadTensor(name string, dst []byte) error {
	t, err := f.find(name)
	if err != nil {
		return err
	}
	if b := t.boxes[0]; b.start == nil {
		return b.shard.ReadTensor(name, dst)
	}
	return f.ReadBox(name, make([]int, len(t.info.Shape)), t.info.Shape, dst)
}

// ReadRange reads len(dst) bytes of a tensor from its byte offset on. Of a tensor that lies in
// boxes it reads whole elements.
func (f *Folder) ReadRange(name string, dst []byte, offset int64) error {
	t, err := f.find(name)
	if err != nil {
		return err
	}
	if b := t.boxes[0]; b.start == nil {
		return b.shard.ReadRange(name, dst, offset)
	}
	if err := boxes.ReadRange(t.info.Shape, t.size(), dst, offset, t.readBox); err != nil {
		return fmt.Errorf("huggingface: %s: tensor %q: %w", f.name, name, err)
	}
	return nil
}

// find returns a tensor.
func (f *Folder) find(name string) (*stored, error) {
	t := f.where[name]
	if t == nil {
		return nil, fmt.Errorf("huggingface: %s has no tensor %q", f.name, name)
	}
	return t, nil
}

// Config returns the text of config.json.
func (f *Folder) Config() ([]byte, error) { return f.ReadFile(context.Background(), configFile) }

// ReadFile reads a file of at most 64 MiB that lies beside the weights.
func (f *Folder) ReadFile(ctx context.Context, name string) ([]byte, error) {
	o, err := f.from.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("huggingface: %s: %w", f.path(name), err)
	}
	defer o.Close()
	if o.Size() > maxJSON {
		return nil, fmt.Errorf("huggingface: %s has more than the %d bytes allowed", f.path(name), maxJSON)
	}
	text, err := io.ReadAll(io.NewSectionReader(o, 0, o.Size()))
	if err != nil {
		return nil, fmt.Errorf("huggingface: %s: %w", f.path(name), err)
	}
	return text, nil
}

// Close closes all files.
func (f *Folder) Close() error {
	var errs []error
	for _, o := range f.objects {
		errs = append(errs, o.Close())
	}
	f.shards, f.objects = nil, nil
	return errors.Join(errs...)
}
