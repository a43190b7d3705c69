// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"

	"github.com/cohort-ml/cohort/checkpoint"
)

// LoadHuggingFaceParts is [LoadHuggingFace] for a model that is spread over ranks: it fills
// what this rank holds, and reads nothing else of the weights. The model was made by [Outline],
// from the same folder, then sharded and given memory. parts are those of its state, under the
// names of the model; see checkpoint.Part. Each rank calls it for itself. The models here keep
// the layout of Hugging Face's files, so a part of a tensor is that part of the file's, or of
// stacked experts some of the file's tensors ([FileParts]).
func LoadHuggingFaceParts(dir string, parts []checkpoint.Part, opts ...LoadOption) error {
	return openHuggingFace(dir, opts, func(src checkpoint.Source, p *parsed) error {
		parts, err := p.inFiles.parts(parts)
		if err != nil {
			return err
		}
		if err := checkpoint.LoadParts(src, parts, inFloat32...); err != nil {
			return fmt.Errorf("models: load the parts of %s: %w", dir, err)
		}
		return nil
	})
}
