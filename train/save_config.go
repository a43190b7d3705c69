// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// SaveConfig has the settings of checkpoints, which all recipes share. A flag about
// checkpoints is declared here as those of all recipes are in [SharedConfig].
type SaveConfig struct {
	SaveEvery int  `json:"save_every" group:"Checkpoint" usage:"save a checkpoint every {N} steps; 0: at the end only"`
	SaveAsync bool `json:"save_async" usage:"write checkpoints while training goes on: a step waits until the state is copied, not until it is written"`

	SaveTo    string  `json:"-" flag:"save-to" run:"here" usage:"{PLACE} of the checkpoints, a directory or s3://BUCKET/PREFIX; default: the directory of the run"`
	SaveLimit float64 `json:"save_limit" run:"here" usage:"{BYTES} that a rank writes in a second at most, such as 200e6; 0: no limit"`

	Keep      int `json:"keep" usage:"number of the last checkpoints to keep, besides the best weights"`
	KeepEvery int `json:"keep_every" usage:"also keep the checkpoints of every {N} steps; 0: none of them"`
	KeepBest  int `json:"keep_best" usage:"also keep the {N} checkpoints with the best evaluations; 0: none of them"`

	// OpenPlace opens an address such as s3://BUCKET/PREFIX, from which a run begins or is read;
	// nil opens directories only.
	OpenPlace func(place string) (storage.Storage, error) `json:"-"`

	// Storage is where the checkpoints go, opened from SaveTo by the program; nil is the
	// directory SaveTo or, without it, Out.
	Storage storage.Storage `json:"-"`
}

// validate reports the first of these settings that makes no sense.
func (c SaveConfig) validate(task string) error {
	if err := checkWholes(task, []whole{
		{"save-every", c.SaveEvery, 0, 1 << 40}, {"keep", c.Keep, 1, 1 << 20}, {"keep-every", c.KeepEvery, 0, 1 << 40}, {"keep-best", c.KeepBest, 0, 1 << 20},
	}); err != nil {
		return err
	}
	if err := checkNumbers(task, []number{
		{"save-limit", c.SaveLimit, c.SaveLimit == 0 || c.SaveLimit >= 1 && c.SaveLimit < 1<<60, "0, or a number of bytes from 1 on"},
	}); err != nil {
		return err
	}
	if c.Storage == nil && strings.Contains(c.SaveTo, "://") {
		return fmt.Errorf("train %s: --save-to is %s, which nobody has opened: set Storage, or give a directory", task, c.SaveTo)
	}
	if every := c.SaveEvery; c.KeepEvery > 0 && every > 0 && c.KeepEvery%every != 0 {
		return fmt.Errorf("train %s: --keep-every is %d, but checkpoints are saved every %d steps: give a multiple of --save-every", task, c.KeepEvery, every)
	}
	return nil
}

// open opens the place of a model that the user has named. flag is for errors.
func (c SaveConfig) open(flag, place string) (storage.Storage, error) {
	switch {
	case c.OpenPlace != nil:
		return c.OpenPlace(place)
	case strings.Contains(place, "://"):
		return nil, fmt.Errorf("--%s is %s, which nobody opens here: set OpenPlace, or give a directory", flag, place)
	}
	return storage.Dir(place), nil
}

// place returns where the checkpoints of a run in the directory out are.
func (c SharedConfig) place() storage.Storage {
	switch {
	case c.Storage != nil:
		return c.Storage
	case c.SaveTo != "":
		return storage.Dir(c.SaveTo)
	}
	return storage.Dir(c.Out)
}

// fill gives the step loop these settings.
func (c SaveConfig) fill(o *Options) {
	o.SaveSync, o.SaveLimit = !c.SaveAsync, int64(c.SaveLimit)
	o.SaveEvery, o.Keep, o.KeepEvery, o.KeepBest = c.SaveEvery, c.Keep, c.KeepEvery, c.KeepBest
}
