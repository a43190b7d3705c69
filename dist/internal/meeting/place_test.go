// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/backend"
)

// FuzzURL: no text may make placeFromURL panic, and a place that it accepts
// makes sense.
func FuzzURL(f *testing.F) {
	f.Add("tcp://127.0.0.1:29500?rank=1&world_size=2")
	f.Add("tcp://[::1]:1?rank=0&world_size=1")
	f.Add("env://")
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" || text == "env://" {
			return
		}
		p, err := placeFromURL(text)
		if err == nil && (p.rank < 0 || p.rank >= p.worldSize || p.worldSize > backend.MaxWorldSize || p.master == "") {
			t.Errorf("%q gives %+v", text, p)
		}
	})
}
