// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
)

// metadataProtocol is that of .metadata, as PyTorch writes it.
const metadataProtocol = 4

// metadataVersion is PyTorch's own version of what .metadata says.
const metadataVersion = "1.0.0"

func class(module, name string) pickle.Global { return pickle.Global{Module: module, Name: name} }

// object returns an instance with attributes.
func object(module, name string, attrs ...pickle.Entry) *pickle.Object {
	o := &pickle.Object{Class: class(module, name), Args: pickle.Tuple{}, New: true}
	if len(attrs) > 0 {
		o.State = &pickle.Dict{Entries: attrs}
	}
	return o
}

func torchSize(shape []int) *pickle.Object {
	t := make(pickle.Tuple, len(shape))
	for i, n := range shape {
		t[i] = int64(n)
	}
	return &pickle.Object{Class: class("torch", "Size"), Args: pickle.Tuple{t}}
}

// pickle returns the object that PyTorch has for the metadata.
func (m *metadata) pickle() any {
	states, places, paths := &pickle.Dict{}, &pickle.Dict{}, &pickle.Dict{}
	layout := &pickle.Object{Class: class("torch.serialization", "_get_layout"), Args: pickle.Tuple{"torch.strided"}}
	format := &pickle.Object{Class: class(metadataModule, "_MEM_FORMAT_ENCODING"), Args: pickle.Tuple{int64(0)}}
	for _, s := range m.entries {
		paths.Entries = append(paths.Entries, pickle.Entry{Key: s.Name, Value: keys(s.path)})
		if !s.isTensor {
			states.Entries = append(states.Entries, pickle.Entry{Key: s.Name, Value: object(metadataModule, "BytesStorageMetadata")})
			places.Entries = append(places.Entries, pickle.Entry{Key: index(s.Name, nil, nil), Value: s.at.pickle()})
			continue
		}
		dtype, _ := torchsave.DTypeName(s.DType) // WriteFile has written it
		properties := object(metadataModule, "TensorProperties")
		properties.State = pickle.Tuple{class("torch", dtype), layout, false, format, false}
		list := &pickle.List{}
		for i, c := range s.chunks {
			list.Items = append(list.Items, object(metadataModule, "ChunkStorageMetadata", pickle.Entry{Key: "offsets", Value: torchSize(c.Start)}, pickle.Entry{Key: "sizes", Value: torchSize(c.Shape)}))
			places.Entries = append(places.Entries, pickle.Entry{Key: index(s.Name, torchSize(c.Start), int64(i)), Value: c.place.pickle()})
		}
		states.Entries = append(states.Entries, pickle.Entry{Key: s.Name, Value: object(metadataModule, "TensorStorageMetadata",
			pickle.Entry{Key: "properties", Value: properties}, pickle.Entry{Key: "size", Value: torchSize(s.Shape)}, pickle.Entry{Key: "chunks", Value: list})})
	}
	return object(metadataModule, "Metadata",
		pickle.Entry{Key: "state_dict_metadata", Value: states},
		pickle.Entry{Key: "planner_data", Value: paths},
		pickle.Entry{Key: "storage_data", Value: places},
		pickle.Entry{Key: "storage_meta", Value: nil},
		pickle.Entry{Key: "version", Value: metadataVersion})
}

// keys returns a path as a tuple.
func keys(path []any) pickle.Tuple {
	t := make(pickle.Tuple, len(path))
	for i, k := range path {
		t[i] = k
		if n, ok := k.(float64); ok { // a number that has come as JSON
			t[i] = int64(n)
		}
	}
	return t
}

func index(name string, offset, number any) *pickle.Object {
	return object(metadataModule, "MetadataIndex", pickle.Entry{Key: "fqn", Value: name}, pickle.Entry{Key: "index", Value: number}, pickle.Entry{Key: "offset", Value: offset})
}

func (p place) pickle() *pickle.Object {
	return object(fileModule, "_StorageInfo", pickle.Entry{Key: "relative_path", Value: p.file}, pickle.Entry{Key: "offset", Value: p.offset}, pickle.Entry{Key: "length", Value: p.length})
}
