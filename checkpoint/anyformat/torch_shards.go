// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/dist/mesh"
)

const (
	// maxShards bounds the files that are open at once.
	maxShards = 4096
	// maxIndex bounds an index, which has about a hundred bytes for a tensor.
	maxIndex = 64 << 20
)

// torchShards are the files pytorch_model-00001-of-00003.bin and so on of a folder, as one source. Each has
// a state dict with some of the tensors.
type torchShards struct {
	name  string
	files []*torchsave.File
	infos []safetensors.Info
	where map[string]*torchsave.File // by tensor
}

var _ dcp.Source = (*torchShards)(nil)

// torchIndex reads which files the index of a folder names. The files say which tensors there are.
func torchIndex(ctx context.Context, at Location) ([]string, error) {
	fail := func(format string, args ...any) ([]string, error) {
		return nil, &UnknownError{at.Text, "has an index " + torchIndexFile + " that cannot be used: " + fmt.Sprintf(format, args...)}
	}
	text, err := storage.ReadFile(ctx, at.Inside, torchIndexFile, maxIndex)
	if err != nil {
		return nil, openError(Location{Text: path.Join(at.Text, torchIndexFile)}, err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"` // shard by tensor
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return fail("%v", err)
	}
	for tensor, shard := range index.WeightMap {
		if shard != path.Base(shard) || strings.Contains(shard, `\`) || strings.HasPrefix(shard, ".") || !strings.HasSuffix(shard, ".bin") {
			return fail("the tensor %q is in %q, which is not the name of a .bin file beside the index", tensor, shard)
		}
	}
	shards := slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))
	switch {
	case len(shards) == 0:
		return fail("it has no weight_map with tensors")
	case len(shards) > maxShards:
		return fail("it has %d shards, more than the %d allowed", len(shards), maxShards)
	}
	return shards, nil
}

// openTorchShards opens the files of torch.save that an index names.
func (in *Input) openTorchShards(ctx context.Context, at Location) error {
	names, err := torchIndex(ctx, at)
	if err != nil {
		return err
	}
	s := &torchShards{name: at.Text, where: map[string]*torchsave.File{}}
	in.Refused = map[string]error{}
	for _, name := range names {
		text := strings.TrimSuffix(at.Text, "/") + "/" + name
		f, err := in.openTorchFile(ctx, at.Inside, name, text)
		if errors.Is(err, fs.ErrNotExist) {
			return &AccessError{text, "does not exist, and " + torchIndexFile + " names it: copy the folder again", err}
		}
		if err != nil {
			return err
		}
		for _, info := range f.Infos() {
			if first := s.where[info.Name]; first != nil {
				return &UnknownError{at.Text, fmt.Sprintf("has the tensor %q twice, in %s and in %s", info.Name, path.Base(first.Name()), name)}
			}
			s.where[info.Name] = f
			s.infos = append(s.infos, info)
		}
		maps.Copy(in.Refused, f.Refused())
		for _, leaf := range f.Leaves() {
			switch leaf.Value.(type) {
			case *torchsave.Tensor, torchsave.Refused:
			default:
				in.NumObjects++
			}
		}
		s.files = append(s.files, f)
	}
	in.CheckSums = s.checkSums
	in.Sections = []Section{{ModelSection, s}}
	return nil
}

// checkSums is as in [Input], over all files.
func (s *torchShards) checkSums(ctx context.Context, report func(part string, err error)) (has bool, err error) {
	has = true
	for _, f := range s.files {
		all, err := f.CheckSums(ctx, report)
		if err != nil {
			return false, err
		}
		has = has && all
	}
	return has, nil
}

func (s *torchShards) find(name string) (*torchsave.File, error) {
	f := s.where[name]
	if f == nil {
		return nil, fmt.Errorf("%s has no tensor %q", s.name, name)
	}
	return f, nil
}

// Name returns the folder.
func (s *torchShards) Name() string { return s.name }

// Infos returns the tensors of all files, file after file.
func (s *torchShards) Infos() []safetensors.Info { return slices.Clone(s.infos) }

// ReadTensor reads the bytes of a tensor.
func (s *torchShards) ReadTensor(name string, dst []byte) error {
	f, err := s.find(name)
	if err != nil {
		return err
	}
	return f.ReadTensor(name, dst)
}

// ReadRange reads bytes of a tensor from an offset on.
func (s *torchShards) ReadRange(name string, dst []byte, offset int64) error {
	f, err := s.find(name)
	if err != nil {
		return err
	}
	return f.ReadRange(name, dst, offset)
}

// ReadBox reads a box of a tensor.
func (s *torchShards) ReadBox(name string, start, shape []int, dst []byte) error {
	f, err := s.find(name)
	if err != nil {
		return err
	}
	return f.ReadBox(name, start, shape, dst)
}

// Boxes returns the one box of a tensor.
func (s *torchShards) Boxes(name string) []mesh.Box {
	f := s.where[name]
	if f == nil {
		return nil
	}
	return f.Boxes(name)
}
