// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"github.com/cohort-ml/cohort/dist"
)

// Formed is the result of forming a group of ranks of a kind ("processes",
// "goroutines"): how long it took until all of them had met.
func Formed(group *dist.Group, kind string, took time.Duration) Result {
	return Result{
		Bench: "form", Case: kind, Backend: "native", Transport: group.Transport(), Ranks: group.Size(),
		MedianMicros: micros(max(1, took)),
	}
}
