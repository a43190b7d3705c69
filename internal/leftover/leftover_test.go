// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRun(t *testing.T) {
	before := os.TempDir()
	for name, want := range map[string]int{"": 0, "other": 0, "cohort-0123": 1, "cohort-run-1": 1, "torchelastic_x": 1} {
		var dir string
		code := Run(func() int {
			dir = os.TempDir()
			if name != "" {
				if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
					t.Error(err)
				}
			}
			return 0
		})
		if code != want || dir == before || os.TempDir() != before {
			t.Errorf("%q: code %d, in %s", name, code, dir)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
	if code := Run(func() int { return 3 }); code != 3 {
		t.Errorf("code %d", code)
	}
}
