// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
)

const (
	metadataName   = ".metadata"
	metadataModule = "torch.distributed.checkpoint.metadata"
	fileModule     = "torch.distributed.checkpoint.filesystem"
	maxDims        = 64
)

// limits bound .metadata, which has about 250 bytes and 40 values for a box.
var limits = pickle.Limits{Bytes: 1 << 30, Values: 1 << 25, Depth: 32}

// place is where an item lies.
type place struct {
	file   string
	offset int64
	length int64
}

// chunk is a box of a tensor, and where it lies.
type chunk struct {
	boxes.Box
	place
}

// stored is an entry of a checkpoint: a tensor, or an object.
type stored struct {
	safetensors.Info
	isTensor bool
	problem  string // why it cannot be read, "" if it can
	chunks   []chunk
	at       place // of an object
	path     []any // nil if it is not known
}

// metadata is the content of .metadata.
type metadata struct {
	entries []*stored
	named   map[string]*stored
}

// globals are the classes of .metadata. No class outside them is needed.
var globals = map[string]bool{
	"torch.Size": true, "torch.serialization._get_layout": true, "torch.strided": true, "collections.OrderedDict": true,
	"pathlib.PosixPath": true, "pathlib.WindowsPath": true, "pathlib.PurePosixPath": true, "pathlib.PureWindowsPath": true, "pathlib.Path": true,
	"pathlib._local.PosixPath": true, "pathlib._local.WindowsPath": true, fileModule + "._StorageInfo": true,
}

func allow(g pickle.Global) bool {
	if g.Module == metadataModule {
		switch g.Name {
		case "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING":
			return true
		}
	}
	// torch.float32 is a dtype, and torch.FloatStorage is none.
	return globals[g.String()] || g.Module == "torch" && !strings.HasSuffix(g.Name, "Storage") && torchsave.Allow(g)
}

// parseMetadata reads the text of .metadata. name stands for the checkpoint in errors.
func parseMetadata(name string, text []byte) (*metadata, error) {
	p := &parser{name: name}
	v, err := pickle.Decode(text, pickle.Options{File: name + ": " + metadataName, Allow: allow, Limits: limits})
	if err != nil {
		return nil, fmt.Errorf("dcp: %w", err)
	}
	m, err := p.metadata(v)
	var format *FormatError
	if err != nil && !errors.As(err, &format) {
		err = &FormatError{Checkpoint: name, File: metadataName, Problem: err.Error()}
	}
	return m, err
}

type parser struct{ name string }

func (p *parser) errorf(name, format string, args ...any) error {
	return &FormatError{Checkpoint: p.name, File: metadataName, Name: name, Problem: fmt.Sprintf(format, args...)}
}

// instance returns the attributes of an instance of a class.
func instance(v any, module, class string) (map[string]any, error) {
	o, ok := v.(*pickle.Object)
	if !ok || o.Class.Module != module || o.Class.Name != class {
		return nil, fmt.Errorf("it has no %s where one should be", class)
	}
	attrs, ok := o.Attrs()
	if !ok {
		return nil, fmt.Errorf("it has a %s with attributes that make no sense", class)
	}
	return attrs, nil
}

func isInstance(v any, class string) bool {
	o, ok := v.(*pickle.Object)
	return ok && o.Class.Module == metadataModule && o.Class.Name == class
}

func (p *parser) metadata(v any) (*metadata, error) {
	attrs, err := instance(v, metadataModule, "Metadata")
	if err != nil {
		return nil, err
	}
	entries, ok := attrs["state_dict_metadata"].(*pickle.Dict)
	if !ok {
		return nil, errors.New("it has no dict of tensors (state_dict_metadata)")
	}
	m := &metadata{named: map[string]*stored{}}
	for _, e := range entries.Entries {
		name, ok := e.Key.(string)
		if !ok {
			return nil, errors.New("it has a tensor whose name is no text")
		}
		s, err := p.entry(name, e.Value)
		if err != nil {
			return nil, err
		}
		m.entries = append(m.entries, s)
		m.named[name] = s
	}
	if err := p.places(m, attrs["storage_data"]); err != nil {
		return nil, err
	}
	p.paths(m, attrs["planner_data"])
	for _, s := range m.entries {
		switch {
		case s.isTensor && s.problem == "":
			list := make([]boxes.Box, len(s.chunks))
			for i, c := range s.chunks {
				list[i] = c.Box
				if c.file == "" && boxes.NumElems(c.Shape) > 0 {
					s.problem = fmt.Sprintf("has the box %v, and %s does not say where it lies", c.Box, metadataName)
				}
			}
			if why := boxes.Cover(s.Shape, list); why != "" {
				s.problem = "of the shape " + fmt.Sprint(s.Shape) + " is not whole: " + why
			}
		case !s.isTensor && s.at.file == "":
			s.problem = "is an object, and " + metadataName + " does not say where it lies"
		}
	}
	return m, nil
}

// entry reads what is said of a tensor or of an object.
func (p *parser) entry(name string, v any) (*stored, error) {
	s := &stored{Info: safetensors.Info{Name: name}}
	if isInstance(v, "BytesStorageMetadata") {
		return s, nil
	}
	s.isTensor = true
	attrs, err := instance(v, metadataModule, "TensorStorageMetadata")
	if err != nil {
		return nil, p.errorf(name, "is neither a tensor nor an object: %v", err)
	}
	if s.Shape, err = size(attrs["size"]); err != nil {
		return nil, p.errorf(name, "has a size that makes no sense: %v", err)
	}
	properties, ok := attrs["properties"].(*pickle.Object)
	if !ok || properties.Class.Name != "TensorProperties" {
		return nil, p.errorf(name, "has no properties")
	}
	state, _ := properties.State.(pickle.Tuple)
	if len(state) == 0 {
		return nil, p.errorf(name, "has no dtype")
	}
	dtype, ok := state[0].(pickle.Global)
	if !ok || dtype.Module != "torch" {
		return nil, p.errorf(name, "has a dtype that is no dtype")
	}
	if s.DType, ok = torchsave.ParseDType(dtype.Name); !ok {
		s.problem = fmt.Sprintf("is of %s, which safetensors files and Cohort do not have", dtype)
		s.Shape = nil
	} else if s.NumBytes() < 0 {
		return nil, p.errorf(name, "has the shape %v, which no tensor has", s.Shape)
	}
	list, ok := attrs["chunks"].(*pickle.List)
	if !ok {
		return nil, p.errorf(name, "has no list of boxes")
	}
	for _, item := range list.Items {
		attrs, err := instance(item, metadataModule, "ChunkStorageMetadata")
		if err != nil {
			return nil, p.errorf(name, "has a box that is none: %v", err)
		}
		var b boxes.Box
		if b.Start, err = size(attrs["offsets"]); err != nil {
			return nil, p.errorf(name, "has a box with offsets that make no sense: %v", err)
		}
		if b.Shape, err = size(attrs["sizes"]); err != nil {
			return nil, p.errorf(name, "has a box with sizes that make no sense: %v", err)
		}
		if s.problem != "" {
			continue
		}
		if why := boxes.Within(b, s.Shape); why != "" {
			return nil, p.errorf(name, "has a box that %s", why)
		}
		s.chunks = append(s.chunks, chunk{Box: b})
	}
	return s, nil
}

// size reads a torch.Size.
func size(v any) ([]int, error) {
	if o, ok := v.(*pickle.Object); ok && o.Class.String() == "torch.Size" && len(o.Args) == 1 {
		v = o.Args[0]
	}
	t, ok := v.(pickle.Tuple)
	if !ok {
		return nil, errors.New("it is no tuple of numbers")
	}
	if len(t) > maxDims {
		return nil, fmt.Errorf("it has %d dims, more than the %d allowed", len(t), maxDims)
	}
	out := make([]int, len(t)) // not nil, also of a scalar
	for i, n := range t {
		k, ok := n.(int64)
		if !ok || k < 0 {
			return nil, fmt.Errorf("%v is no size", n)
		}
		out[i] = int(k)
	}
	return out, nil
}

// places reads where the items lie.
func (p *parser) places(m *metadata, v any) error {
	d, ok := v.(*pickle.Dict)
	if !ok {
		return errors.New("it does not say where the tensors lie (storage_data): it may have been written by another storage than files")
	}
	boxOf := map[string]map[string]int{} // number of the box by name and offset
	for _, e := range d.Entries {
		index, err := instance(e.Key, metadataModule, "MetadataIndex")
		if err != nil {
			return err
		}
		name, _ := index["fqn"].(string)
		at, err := p.place(name, e.Value)
		if err != nil {
			return err
		}
		s := m.named[name]
		switch {
		case s == nil:
			return p.errorf(name, "lies in %s, and is no tensor or object of the checkpoint", at.file)
		case !s.isTensor:
			s.at = at
			continue
		case len(s.chunks) == 0:
			continue
		}
		offset := make([]int, len(s.Shape))
		if index["offset"] != nil {
			if offset, err = size(index["offset"]); err != nil {
				return p.errorf(name, "has an offset that makes no sense: %v", err)
			}
		}
		if boxOf[name] == nil {
			boxOf[name] = make(map[string]int, len(s.chunks))
			for i, c := range s.chunks {
				// Boxes without elements may begin where another one begins.
				if key := fmt.Sprint(c.Start); boxes.NumElems(c.Shape) > 0 || len(s.chunks) == 1 {
					boxOf[name][key] = i
				}
			}
		}
		if i, found := boxOf[name][fmt.Sprint(offset)]; found {
			s.chunks[i].place = at
		}
	}
	return nil
}

// place reads a _StorageInfo.
func (p *parser) place(name string, v any) (place, error) {
	attrs, err := instance(v, fileModule, "_StorageInfo")
	if err != nil {
		return place{}, p.errorf(name, "lies in no file: %v", err)
	}
	file, ok := attrs["relative_path"].(string)
	offset, ok2 := attrs["offset"].(int64)
	length, ok3 := attrs["length"].(int64)
	switch {
	case !ok || !ok2 || !ok3 || offset < 0 || length < 0 || offset > offset+length:
		return place{}, p.errorf(name, "lies at a place that makes no sense")
	case !isPlainPath(file):
		return place{}, p.errorf(name, "lies in %q, which is not the name of a file in the checkpoint", file)
	}
	if t := attrs["transform_descriptors"]; t != nil {
		return place{}, p.errorf(name, "was transformed when it was saved (%v), as by compression, which is not read: save it without extensions", describe(t))
	}
	return place{file, offset, length}, nil
}

// describe returns the names in a list.
func describe(v any) string {
	switch v := v.(type) {
	case *pickle.List:
		return fmt.Sprint(v.Items...)
	case pickle.Tuple:
		return fmt.Sprint(v...)
	}
	return fmt.Sprint(v)
}

// isPlainPath accepts names of files that lie in the checkpoint's directory.
func isPlainPath(name string) bool {
	return name != "" && !strings.ContainsAny(name, "\\:\x00") && !path.IsAbs(name) && path.Clean(name) == name && name != "." && name != ".." && !strings.HasPrefix(name, "../")
}

// paths reads which keys of nested dicts and lists make the flat names. It is nothing that a
// reader needs, and other planners than PyTorch's own keep other things there.
func (p *parser) paths(m *metadata, v any) {
	d, ok := v.(*pickle.Dict)
	if !ok {
		return
	}
	for _, e := range d.Entries {
		name, _ := e.Key.(string)
		keys, ok := e.Value.(pickle.Tuple)
		if s := m.named[name]; s != nil && ok {
			s.path = keys
		}
	}
}
