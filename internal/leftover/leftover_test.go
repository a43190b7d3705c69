// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, want := range map[string]int{"": 0, "other": 0, "cohort-0123": 1, "cohort-run-1": 1, "torchelastic_x": 1} {
		dir := Dir()
		if name != "" {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if code := Check(dir, 0); code != want {
			t.Errorf("%q: code %d, in %s", name, code, dir)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
	if code := Check(Dir(), 3); code != 3 {
		t.Errorf("code %d", code)
	}
}
