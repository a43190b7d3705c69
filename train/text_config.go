// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/config"
)

// TextConfig has the settings that the recipes of texts, [Embed] and [Classify], share.
type TextConfig struct {
	Data       string  `json:"data" group:"Run" usage:"{FILE} of records: JSON lines (.jsonl), or a table with a header (.csv, .tsv)"`
	Validation float64 `json:"validation" run:"fixed" usage:"share of the records, 0 to 0.5, that is held out to evaluate on"`
	Epochs     float64 `json:"epochs" usage:"how many times to train on every record"`

	InitFrom  string `json:"init_from,omitempty" run:"fixed" group:"Model" usage:"{DIR} of the encoder to begin with (BERT, RoBERTa, XLM-R, MiniLM, DistilBERT): a folder of Hugging Face's or sentence-transformers', or a run"`
	MaxTokens int    `json:"max_tokens" run:"fixed" usage:"most tokens of a text, those around it included; longer texts lose their end; 0: the folder's, or what the model takes up to 256"`

	LR          float64 `json:"lr" group:"Optimizer" usage:"highest learning rate"`
	WeightDecay float64 `json:"weight_decay" usage:"weight decay of the matrices"`
	Warmup      float64 `json:"warmup" usage:"share of the steps, 0 to 1, in which the learning rate rises"`
	LRFloor     float64 `json:"lr_floor" usage:"share of the learning rate, 0 to 1, that is left at the end"`
}

// unsaidTokens is how many tokens a text has at most where nobody says.
const unsaidTokens = 256

// validateText reports the first of these settings that makes no sense.
func (c TextConfig) validateText(task string) error {
	if c.Data == "" {
		return fmt.Errorf("train %s: --data is empty: name a file of records, .jsonl, .csv or .tsv", task)
	}
	if err := checkWholes(task, []whole{{"max-tokens", c.MaxTokens, 0, 1 << 20}}); err != nil {
		return err
	}
	if err := checkNumbers(task, []number{
		{"validation", c.Validation, c.Validation >= 0 && c.Validation <= 0.5, "a share of the records, 0 to 0.5"},
		{"epochs", c.Epochs, c.Epochs > 0 && c.Epochs <= 1e6, "a number above 0, at most a million"},
		{"lr", c.LR, c.LR > 0 && c.LR <= math.MaxFloat32, "a finite number above 0"},
		{"weight-decay", c.WeightDecay, c.WeightDecay >= 0 && c.WeightDecay <= math.MaxFloat32, "a finite number from 0 on"},
		{"warmup", c.Warmup, c.Warmup >= 0 && c.Warmup <= 1, "a share of the steps, 0 to 1"},
		{"lr-floor", c.LRFloor, c.LRFloor >= 0 && c.LRFloor <= 1, "a share of the learning rate, 0 to 1"},
	}); err != nil {
		return err
	}
	return checkDecay(task, c.LR, c.WeightDecay)
}

// mostTokens is how many tokens of a text count with a model that takes so many.
func (c TextConfig) mostTokens(task string, said, context int) (int, error) {
	most := said
	if most == 0 {
		most = min(unsaidTokens, context)
	}
	if c.MaxTokens > 0 {
		most = c.MaxTokens
	}
	if most > context || most < 3 {
		return 0, fmt.Errorf("train %s: --max-tokens is %d, the model takes 3 to %d tokens", task, most, context)
	}
	return most, nil
}

// EmbedConfig has the settings of a run of [Embed]. They are saved with every checkpoint.
type EmbedConfig struct {
	TextConfig

	Columns  []string `json:"columns,omitempty" run:"fixed" group:"Loss" usage:"{NAMES} of the fields with the texts of a record: two, that belong together, or three, of which the last does not belong; default: what the records have of anchor, positive, negative and other usual names"`
	Score    string   `json:"score,omitempty" run:"fixed" usage:"{NAME} of the field that says how alike two texts are, 0 to 1; default: score, if there is one"`
	Loss     string   `json:"loss,omitempty" run:"fixed" values:"ranking|triplet|cosine" usage:"what is learned: to find a text's partner among all texts of a step; that the third text is farther away than the second; or the scores; default: what suits the records"`
	Scale    float64  `json:"scale" usage:"of ranking: by which the cosines are multiplied, 1 / temperature"`
	Margin   float64  `json:"margin" usage:"of triplet: how much farther away the third text shall be; 0: 5, or for the cosine 0.5"`
	Distance string   `json:"distance" values:"euclidean|cosine|manhattan" usage:"of triplet: how far away texts are"`
	Local    bool     `json:"local,omitempty" usage:"of ranking: look for partners among the texts of one rank, not of all"`

	SharedConfig
}

// DefaultEmbed returns settings that fine-tune an encoder.
func DefaultEmbed() EmbedConfig {
	c := EmbedConfig{
		TextConfig: TextConfig{Validation: 0.1, Epochs: 1, LR: 2e-5, WeightDecay: 0.01, Warmup: 0.1},
		Scale:      20, Distance: "euclidean", SharedConfig: sharedDefaults("out/embed"),
	}
	c.Batch, c.Clip, c.EvalEvery, c.SaveEvery = 32, 1, 200, 500
	return c
}

// Validate reports the first setting that makes no sense, and what would.
func (c EmbedConfig) Validate() error {
	if err := c.validate("embed"); err != nil {
		return err
	}
	if err := c.onlyData("embed", "an encoder of texts"); err != nil {
		return err
	}
	if err := c.validateText("embed"); err != nil {
		return err
	}
	for flag, v := range map[string][2]string{"loss": {c.Loss, "ranking|triplet|cosine"}, "distance": {c.Distance, "euclidean|cosine|manhattan"}} {
		if v[0] != "" && !isOneOf(v[0], v[1]) {
			return fmt.Errorf("train embed: --%s is %q, want one of %s", flag, v[0], v[1])
		}
	}
	if n := len(c.Columns); n != 0 && n != 2 && n != 3 {
		return fmt.Errorf("train embed: --columns names %d fields, want two or three", n)
	}
	if c.DiLoCo > 0 {
		return fmt.Errorf("train embed: --diloco trains islands, which the texts of a step would have to reach: leave it out")
	}
	return checkNumbers("embed", []number{
		{"scale", c.Scale, c.Scale > 0 && c.Scale <= 1e6, "a number above 0"},
		{"margin", c.Margin, c.Margin >= 0 && c.Margin <= 1e6, "a number from 0 on"},
	})
}

// steps returns how many steps the epochs of n samples have.
func (c TextConfig) steps(n, size int) int {
	return max(1, int(math.Ceil(c.Epochs*float64(n)/float64(size))))
}

// adopt takes the settings of a checkpoint's run; see [SharedConfig].
func (c *EmbedConfig) adopt(saved EmbedConfig, s *config.Settings, path string) error {
	return conflicting("embed", c.Out, c.SharedConfig.adopt(s, &saved, saved.SharedConfig, path, "records"))
}

// isOneOf says whether a value is one of those that the tag of a setting lists.
func isOneOf(value, values string) bool { return slices.Contains(strings.Split(values, "|"), value) }
