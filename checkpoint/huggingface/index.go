// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// maxShards bounds the files that are open at once.
const maxShards = 4096

// index is a model.safetensors.index.json.
type index struct {
	path      string
	Metadata  indexMetadata     `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"` // shard by tensor
}

type indexMetadata struct {
	TotalSize int64 `json:"total_size"` // bytes of all tensors
}

// parseIndex reads an index and checks that its shards are files of the folder.
func parseIndex(path string, text []byte) (index, error) {
	// The reference writes the size as an integer, others as a float; nobody
	// needs it, so that only what is needed is read.
	var raw struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return index{}, fmt.Errorf("huggingface: %s: %w", path, err)
	}
	x := index{path: path, WeightMap: raw.WeightMap}
	if len(x.WeightMap) == 0 {
		return index{}, x.errorf("it has no weight_map with tensors")
	}
	for name, shard := range x.WeightMap {
		if name == "" {
			return index{}, x.errorf("a tensor in the shard %q has no name", shard)
		}
		if shard != filepath.Base(shard) || strings.ContainsAny(shard, `/\`) || strings.HasPrefix(shard, ".") || !strings.HasSuffix(shard, ".safetensors") {
			return index{}, x.errorf("the tensor %q is in %q, which is not the name of a .safetensors file beside the index", name, shard)
		}
	}
	if n := len(x.shards()); n > maxShards {
		return index{}, x.errorf("it has %d shards, more than the %d allowed", n, maxShards)
	}
	return x, nil
}

// shards returns the files in order.
func (x index) shards() []string {
	return slices.Compact(slices.Sorted(maps.Values(x.WeightMap)))
}

func (x index) errorf(format string, args ...any) error {
	return fmt.Errorf("huggingface: %s: %s", x.path, fmt.Sprintf(format, args...))
}
