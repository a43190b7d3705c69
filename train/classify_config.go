// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/config"
)

// What [Classify] learns of a record.
const (
	kindSingle     = "single"     // the one class of a text
	kindMulti      = "multi"      // all classes of a text
	kindTags       = "tags"       // the class of each word
	kindRegression = "regression" // a number
)

// ClassifyConfig has the settings of a run of [Classify]. They are saved with every checkpoint.
type ClassifyConfig struct {
	TextConfig

	Text  string `json:"text,omitempty" run:"fixed" group:"Records" usage:"{NAME} of the field with the text, for tags with the list of words; default: text, sentence, or tokens"`
	Label string `json:"label,omitempty" run:"fixed" usage:"{NAME} of the field with the class, with the list of classes, or with the list of tags; default: label, labels, or tags"`
	Kind  string `json:"kind,omitempty" run:"fixed" values:"single|multi|tags|regression" usage:"what is learned: the class of a text, all of its classes, the class of each word, or a number; default: what the first record looks like"`

	SharedConfig
}

// DefaultClassify returns settings that fine-tune an encoder.
func DefaultClassify() ClassifyConfig {
	c := ClassifyConfig{
		TextConfig:   TextConfig{Validation: 0.1, Epochs: 3, LR: 5e-5, WeightDecay: 0.01, Warmup: 0.1},
		SharedConfig: sharedDefaults("out/classify"),
	}
	c.Batch, c.Clip, c.EvalEvery, c.SaveEvery = 16, 1, 200, 500
	return c
}

// Validate reports the first setting that makes no sense, and what would.
func (c ClassifyConfig) Validate() error {
	if err := c.validate("classify"); err != nil {
		return err
	}
	if err := c.onlyData("classify", "a classifier of texts"); err != nil {
		return err
	}
	if err := c.validateText("classify"); err != nil {
		return err
	}
	if kinds := "single|multi|tags|regression"; c.Kind != "" && !isOneOf(c.Kind, kinds) {
		return fmt.Errorf("train classify: --kind is %q, want one of %s", c.Kind, kinds)
	}
	return nil
}

// adopt takes the settings of a checkpoint's run; see [SharedConfig].
func (c *ClassifyConfig) adopt(saved ClassifyConfig, s *config.Settings, path string) error {
	return conflicting("classify", c.Out, c.SharedConfig.adopt(s, &saved, saved.SharedConfig, path, "records"))
}
