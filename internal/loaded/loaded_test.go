// SPDX-License-Identifier: Apache-2.0

package loaded

import (
	"testing"
	"time"
)

func TestWanting(t *testing.T) {
	for line, want := range map[string]float64{
		"0.61 0.70 0.81 3/1024 4711\n": 3,
		"47.5 40.0 30.1 3/1024 4711\n": 47.5,
		"0.61 0.70 0.81\n":             0,
		"x 0.70 0.81 3/1024 4711\n":    0,
		"":                             0,
	} {
		if got := wanting([]byte(line)); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	if d := Allow(time.Second); d < time.Second {
		t.Errorf("less than what was to be allowed: %v", d)
	}
}
