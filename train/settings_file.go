// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/internal/config"
)

// settingsFile is the name of the run's configuration in its directory.
const settingsFile = "config.toml"

// settingsText returns a configuration file with a recipe's settings that gives
// steps of a size. If the ranks share the samples of a step unevenly, which settings
// cannot express, the file has a number of ranks that share them evenly.
func settingsText(task string, s *config.Settings, size stepSize) []byte {
	if size.uneven > 0 {
		was := size
		for size.ranks > 1 && size.uneven%(size.ranks*size.accumulate) != 0 {
			size.ranks--
		}
		size.batch = size.uneven / (size.ranks * size.accumulate)
		value := func(name string) int { return s.Field(name).Value().(int) }
		ranks := value("ranks")
		for name, n := range map[string][2]int{
			"ranks": {size.ranks * ranks / was.ranks, ranks}, "batch": {size.batch, was.batch},
			axisReplicate: {0, value(axisReplicate)}, axisFSDP: {0, value(axisFSDP)}, axisEP: {0, value(axisEP)},
		} {
			f := s.Field(name)
			from := f.From
			defer func() { f.SetInt(n[1], from) }()
			f.SetInt(n[0], fmt.Sprintf("for %d a step, which %d ranks share out unevenly", size.uneven, was.ranks))
		}
	}
	return s.TOML("The settings of a `cohort train "+task+"`, and where each came from.", "cohort train "+task+" --config THIS_FILE --out ANOTHER does the same again.")
}

// writeSettings writes the configuration to the run's directory, for people to read
// and to run again.
func (r *trainer[B]) writeSettings() error {
	if r.axes.World.Rank() != 0 || r.o.Config == nil {
		return nil
	}
	path := filepath.Join(r.o.Out, settingsFile)
	// A run that is complete keeps the settings that it was made with.
	done := r.step >= r.o.Steps || r.standing.over(r.o.Patience)
	if old, err := os.ReadFile(path); err == nil && (done || bytes.Equal(old, r.o.Config)) {
		return nil
	}
	temp := path + ".new"
	err := os.WriteFile(temp, r.o.Config, 0o666)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return r.errorf("save the configuration: %w", err)
	}
	return nil
}
