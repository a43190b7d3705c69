// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
)

// sectionOf are the keys under which programs of PyTorch keep the parts of what they save.
var sectionOf = map[string]string{
	"model": ModelSection, "model_state": ModelSection, "model_state_dict": ModelSection, "state_dict": ModelSection, "module": ModelSection, "net": ModelSection,
	"optim": OptimizerSection, "optimizer": OptimizerSection, "optimizer_state": OptimizerSection, "optimizer_state_dict": OptimizerSection, "optimizers": OptimizerSection,
}

// OptimizerSection is the section of the optimizer's state.
const OptimizerSection = "optimizer"

// split makes sections of a source whose tensors have the names of their places in nested
// dicts. keys has the first key of those that lie in a dict of their own, by name; a name of a
// state dict such as model.weight is not a place in a dict called model. Tensors under keys
// that are of no section are in a section of the key's name.
func split(src checkpoint.Source, keys map[string]string) ([]Section, error) {
	var used []string // keys
	for _, info := range src.Infos() {
		key, nested := keys[info.Name]
		if !nested {
			return []Section{{ModelSection, src}}, nil
		}
		if !slices.Contains(used, key) {
			used = append(used, key)
		}
	}
	if !slices.ContainsFunc(used, func(key string) bool { return sectionOf[key] != "" }) {
		return []Section{{ModelSection, src}}, nil
	}
	var sections []Section
	for _, key := range used {
		name := cmp.Or(sectionOf[key], key)
		if slices.ContainsFunc(sections, func(s Section) bool { return s.Name == name }) {
			name = key // model and state_dict in one file
		}
		under, err := checkpoint.Select(src, func(full string) (string, bool) {
			return strings.TrimPrefix(full, key+"."), keys[full] == key
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", src.Name(), err)
		}
		sections = append(sections, Section{name, under})
	}
	return sections, nil
}
