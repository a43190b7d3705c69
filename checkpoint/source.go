// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// Source is where tensors are loaded from: a safetensors file, a folder of
// shards (package checkpoint/huggingface), or one of these under other names
// ([Rename]).
type Source interface {
	Name() string // for messages
	Infos() []safetensors.Info
	// ReadTensor reads a tensor's bytes into dst, which must be exactly as long.
	ReadTensor(name string, dst []byte) error
	// ReadRange reads len(dst) bytes of a tensor from its byte offset on.
	ReadRange(name string, dst []byte, offset int64) error
}

// Rename returns src with every tensor called what name returns for it; one for
// which that is "" is left out. Two tensors that would have one name are an
// error.
func Rename(src Source, name func(string) string) (Source, error) {
	r := &renamed{Source: src, original: map[string]string{}}
	for _, info := range src.Infos() {
		from := info.Name
		if info.Name = name(from); info.Name == "" {
			continue
		}
		if other, taken := r.original[info.Name]; taken {
			return nil, fmt.Errorf("checkpoint: %s: the tensors %q and %q are both for %q", src.Name(), other, from, info.Name)
		}
		r.original[info.Name] = from
		r.infos = append(r.infos, info)
	}
	return r, nil
}

type renamed struct {
	Source
	infos    []safetensors.Info
	original map[string]string // by new name
}

func (r *renamed) Infos() []safetensors.Info { return r.infos }

func (r *renamed) ReadTensor(name string, dst []byte) error {
	from, err := r.find(name)
	if err != nil {
		return err
	}
	return r.Source.ReadTensor(from, dst)
}

func (r *renamed) ReadRange(name string, dst []byte, offset int64) error {
	from, err := r.find(name)
	if err != nil {
		return err
	}
	return r.Source.ReadRange(from, dst, offset)
}

// find returns the source's name of a tensor.
func (r *renamed) find(name string) (string, error) {
	from, ok := r.original[name]
	if !ok {
		return "", fmt.Errorf("checkpoint: %s has no tensor for %q", r.Name(), name)
	}
	return from, nil
}
