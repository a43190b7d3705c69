// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/internal/config"
)

// RecConfig has the settings of a run of [Rec]: all that decides the run besides
// the rows. They are saved with every checkpoint. Each field with a usage is a
// flag of `cohort train rec` and a key of its configuration file; package
// internal/config explains the tags.
type RecConfig struct {
	Data   string  `json:"data" group:"Run" usage:"{PATH} of a CSV file, plain or gzip, or of a directory of such files; default: a generated table"`
	Epochs float64 `json:"epochs" usage:"how many times to train on every row"`

	Model    string   `json:"model" run:"fixed" group:"Model" values:"dlrm|mf" usage:"kind of model: DLRM, or the matrix factorization of two categories"`
	Width    int      `json:"width" run:"fixed" usage:"width of a category's vectors"`
	Bottom   []string `json:"bottom" run:"fixed" usage:"{WIDTHS} of dlrm's layers for numbers, such as 64,32; the last one, of --width, is not listed"`
	Top      []string `json:"top" run:"fixed" usage:"{WIDTHS} of dlrm's layers for the interactions; the last one, of 1, is not listed"`
	InitFrom string   `json:"init_from,omitempty" run:"fixed" usage:"{DIR} of a run whose weights this one begins with, such as a run on fewer rows; columns are matched by name"`

	Label      string   `json:"label" run:"fixed" group:"Table" usage:"{COLUMN} to predict; default: the column named label, or else the first"`
	Positive   float64  `json:"positive" run:"fixed" usage:"a label counts as 1 from {NUMBER} on; 0: labels are 0 or 1 already"`
	Numbers    []string `json:"numbers" run:"fixed" usage:"{COLUMNS} of numbers; default: all that look like numbers"`
	Categories []string `json:"categories" run:"fixed" usage:"{COLUMNS} of names and ids; default: all others"`
	Separator  string   `json:"separator" run:"fixed" usage:"{CHARACTER} between fields, or tab; default: a tab in files named .tsv, else a comma"`
	NoHeader   bool     `json:"no_header" run:"fixed" usage:"the first line is a row; the columns are called 1, 2, 3, …"`
	Buckets    int      `json:"buckets" run:"fixed" usage:"rows of each category's table; values are hashed into them (a generated table has its own)"`
	Validation float64  `json:"validation" run:"fixed" usage:"share of the rows, between 0 and 1, to validate on"`
	Rows       int      `json:"rows" run:"fixed" usage:"rows of the generated table"`

	LR    float64 `json:"lr" group:"Optimizer" usage:"Adagrad's learning rate"`
	Decay float64 `json:"decay" usage:"decay of Adagrad's learning rate: at step t it is lr / (1 + t × decay)"`

	ServerConfig

	SharedConfig
}

// DefaultRec returns settings that train for some ten seconds on two cores.
func DefaultRec() RecConfig {
	c := RecConfig{
		SharedConfig: sharedDefaults("out/rec"), Epochs: 5,
		Model: recDLRM, Width: 8, Bottom: []string{"16"}, Top: []string{"32"},
		ServerConfig: ServerConfig{PSAt: []string{}}, Numbers: []string{}, Categories: []string{}, Buckets: 100_000, Validation: 0.1, Rows: table.DefaultGenerated().Rows,
		LR: 0.05,
	}
	c.Batch, c.EvalEvery, c.SaveEvery = 512, 200, 500
	return c
}

// Validate reports the first setting that makes no sense, and what would.
func (c RecConfig) Validate() error {
	if err := c.validate("rec"); err != nil {
		return err
	}
	if err := c.onlyData("rec", "a recommender"); err != nil {
		return err
	}
	if err := c.validateServers(); err != nil {
		return err
	}
	if err := checkWholes("rec", []whole{
		{"buckets", c.Buckets, 2, math.MaxInt32}, {"rows", c.Rows, 1, 1 << 30}, {"width", c.Width, 1, 1 << 16},
	}); err != nil {
		return err
	}
	if !slices.Contains(recommenders, c.Model) {
		return fmt.Errorf("train rec: --model is %q, want %s", c.Model, strings.Join(recommenders, " or "))
	}
	if err := checkNumbers("rec", []number{
		{"epochs", c.Epochs, c.Epochs > 0 && c.Epochs <= 1e6, "a number above 0, at most a million"},
		{"lr", c.LR, c.LR > 0 && c.LR <= math.MaxFloat32, "a finite number above 0"},
		{"decay", c.Decay, c.Decay >= 0 && c.Decay <= math.MaxFloat32, "a finite number from 0 on"},
		{"validation", c.Validation, c.Validation > 0 && c.Validation < 1, "a share between 0 and 1"},
		{"positive", c.Positive, !math.IsNaN(c.Positive) && !math.IsInf(c.Positive, 0), "a finite number"},
	}); err != nil {
		return err
	}
	if _, err := c.format(); err != nil {
		return err
	}
	for flag, texts := range map[string][]string{"bottom": c.Bottom, "top": c.Top} {
		if _, err := widths(flag, texts); err != nil {
			return fmt.Errorf("train rec: %w", err)
		}
	}
	return nil
}

// format says how the file is written.
func (c RecConfig) format() (table.Format, error) {
	f := table.Format{NoHeader: c.NoHeader}
	switch {
	case c.Separator == "tab" || c.Separator == `\t`:
		f.Comma = '\t'
	case len(c.Separator) == 1 && !strings.ContainsAny(c.Separator, "\"\r\n"):
		f.Comma = c.Separator[0]
	case c.Separator != "":
		return f, fmt.Errorf("train rec: --separator is %q, want one character, or tab", c.Separator)
	}
	return f, nil
}

// widths reads a list of layers.
func widths(flag string, texts []string) ([]int, error) {
	var all []int
	for _, text := range texts {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 || n > 1<<16 {
			return nil, fmt.Errorf("--%s has a layer of %q, want widths from 1 to %d such as 64,32", flag, text, 1<<16)
		}
		all = append(all, n)
	}
	return all, nil
}

// adopt takes the settings of a checkpoint's run; see [SharedConfig].
func (c *RecConfig) adopt(saved RecConfig, s *config.Settings, path string) error {
	return conflicting("rec", c.Out, c.SharedConfig.adopt(s, &saved, saved.SharedConfig, path, "rows"))
}
