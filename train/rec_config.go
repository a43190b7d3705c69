// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/internal/config"
)

// RecConfig is everything that decides a run of [Rec], besides the rows
// themselves. It is saved with every checkpoint. Its fields are the flags of
// `cohort train rec` and the keys of its configuration file; package
// internal/config says what the tags mean.
type RecConfig struct {
	Data string `json:"data" usage:"CSV {file}, plain or gzip, or a directory of them; default is a generated table"`
	Out  string `json:"-" flag:"out" run:"here" usage:"{directory} of the run"`

	Ranks      int     `json:"ranks" run:"here" usage:"{number} of ranks, a process each"`
	Model      string  `json:"model" run:"fixed" usage:"dlrm, or mf: matrix factorization of two categories"`
	Batch      int     `json:"batch" usage:"rows a rank and pass"`
	Accumulate int     `json:"accumulate" usage:"{passes} of a step, whose gradients add up"`
	Epochs     float64 `json:"epochs" usage:"{times} that every row is trained on"`
	Seed       int64   `json:"seed" run:"fixed" usage:"decides the first weights, the order of the rows and the generated table"`
	DType      string  `json:"dtype" usage:"{type} that is computed in: float32 or bfloat16 (weights and checkpoints are float32 always)"`
	NaN        string  `json:"nan" usage:"what to do about a step whose loss or gradients are not finite: {stop}, or skip its update (at most 10 in a row)"`

	InitFrom string `json:"init_from,omitempty" run:"fixed" usage:"{directory} of a run whose weights this one begins with, such as one of fewer rows: columns are carried over by their names"`

	Label      string   `json:"label" run:"fixed" usage:"{column} that is predicted; default is the one named label, or else the first"`
	Positive   float64  `json:"positive" run:"fixed" usage:"{value} from which on a label counts as 1; 0 for labels that are 0 or 1"`
	Numbers    []string `json:"numbers" run:"fixed" usage:"{columns} of numbers; default is all that look so"`
	Categories []string `json:"categories" run:"fixed" usage:"{columns} of names and ids; default is all others"`
	Separator  string   `json:"separator" run:"fixed" usage:"{character} between fields, or tab; default is a tab in files named .tsv, else a comma"`
	NoHeader   bool     `json:"no_header" run:"fixed" usage:"the first line is a row, and the columns are called 1, 2, 3, …"`
	Buckets    int      `json:"buckets" run:"fixed" usage:"{rows} of the table of each category, into which its values are hashed; a generated table has its own"`
	Validation float64  `json:"validation" run:"fixed" usage:"{share} of the rows to validate on"`
	Rows       int      `json:"rows" run:"fixed" usage:"rows of the generated table"`

	Width  int      `json:"width" run:"fixed" usage:"width of a category's vectors"`
	Bottom []string `json:"bottom" run:"fixed" usage:"{widths} of dlrm's network for numbers, before the last, which is --width"`
	Top    []string `json:"top" run:"fixed" usage:"{widths} of dlrm's network for the interactions, before the last, which is 1"`

	LR    float64 `json:"lr" usage:"Adagrad's learning {rate}"`
	Decay float64 `json:"decay" usage:"Adagrad's learning rate at step t is lr / (1 + t × {decay})"`
	Clip  float64 `json:"clip" usage:"largest {norm} of all gradients together; 0 clips nothing"`

	EvalEvery int  `json:"eval_every" usage:"{steps} between evaluations; 0 evaluates at the end alone"`
	Patience  int  `json:"patience" usage:"{evaluations} without a better one until the run ends early; 0 is never"`
	Best      bool `json:"best" usage:"keep the weights with the best area under the curve in OUT/best"`
	SaveEvery int  `json:"save_every" usage:"{steps} between checkpoints; 0 saves at the end"`
	Keep      int  `json:"keep" usage:"{number} of checkpoints that stay"`
	Workers   int  `json:"workers" run:"here" usage:"{goroutines} a rank that make batches; 0 makes them in the step"`

	StepShare
}

// DefaultRec is the recipe for some ten seconds on two cores.
func DefaultRec() RecConfig {
	return RecConfig{
		Out: "out/rec", Ranks: 2, Model: recDLRM, Batch: 512, Accumulate: 1, Epochs: 5, Seed: 1, DType: "float32", NaN: nanStop,
		Numbers: []string{}, Categories: []string{}, Buckets: 100_000, Validation: 0.1, Rows: table.DefaultGenerated().Rows,
		Width: 8, Bottom: []string{"16"}, Top: []string{"32"},
		LR: 0.05, EvalEvery: 200, Best: true, SaveEvery: 500, Keep: 2, Workers: 1,
	}
}

// Validate reports the first setting that makes no sense, and what would.
func (c RecConfig) Validate() error {
	if err := checkWholes("rec", []whole{
		{"ranks", c.Ranks, 1, 1 << 16}, {"batch", c.Batch, 1, 1 << 24}, {"accumulate", c.Accumulate, 1, 1 << 20},
		{"buckets", c.Buckets, 2, math.MaxInt32}, {"rows", c.Rows, 1, 1 << 30}, {"width", c.Width, 1, 1 << 16},
		{"eval-every", c.EvalEvery, 0, 1 << 40}, {"patience", c.Patience, 0, 1 << 40}, {"save-every", c.SaveEvery, 0, 1 << 40},
		{"keep", c.Keep, 1, 1 << 20}, {"workers", c.Workers, 0, 1 << 10},
	}); err != nil {
		return err
	}
	if !slices.Contains(recommenders, c.Model) {
		return fmt.Errorf("train rec: --model is %q, want %s", c.Model, strings.Join(recommenders, " or "))
	}
	if err := checkPolicies("rec", c.DType, c.NaN); err != nil {
		return err
	}
	if err := checkNumbers("rec", []number{
		{"epochs", c.Epochs, c.Epochs > 0 && c.Epochs <= 1e6, "a number above 0, at most a million"},
		{"lr", c.LR, c.LR > 0 && c.LR <= math.MaxFloat32, "a finite number above 0"},
		{"decay", c.Decay, c.Decay >= 0 && c.Decay <= math.MaxFloat32, "a finite number from 0 on"},
		{"clip", c.Clip, c.Clip >= 0, "a number from 0 on"},
		{"validation", c.Validation, c.Validation > 0 && c.Validation < 1, "a share between 0 and 1"},
		{"positive", c.Positive, !math.IsNaN(c.Positive) && !math.IsInf(c.Positive, 0), "a finite number"},
	}); err != nil {
		return err
	}
	if err := checkPatience("rec", c.Patience, c.EvalEvery); err != nil {
		return err
	}
	if err := checkNamed("rec", c.Out); err != nil {
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

// size returns how many rows a step takes.
func (c RecConfig) size() stepSize { return stepSize{c.Ranks, c.Batch, c.Accumulate, c.Uneven} }

// adopt takes over what a checkpoint's run was made with. What the user gave
// stays, but must agree where it makes the run what it is: data, columns, model,
// seed, and the rows of a step.
func (c *RecConfig) adopt(saved RecConfig, s *config.Settings, path string) error {
	conflicts := s.Adopt(&saved, filepath.Base(path))
	size := c.size()
	if conflict := size.resume(saved.size(), saved.StepShare, &c.StepShare, s.Given(), "rows"); conflict != "" {
		conflicts = append(conflicts, conflict)
	}
	c.Batch, c.Accumulate = size.batch, size.accumulate
	return conflicting("rec", c.Out, conflicts)
}
