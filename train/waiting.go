// SPDX-License-Identifier: Apache-2.0

package train

import "github.com/cohort-ml/cohort/data"

const (
	waitsTooLong = 0.1 // share of its time that a rank waits for data before the user hears of it
	waitsBatches = 20  // that tell
)

// tellWaiting says once in a run that rank 0 waits for data, and why. The other
// ranks have loaders like it; one whose data is slower than that is a straggler,
// which DDP tells.
func (r *trainer[B]) tellWaiting() {
	loader, ok := r.feed.(interface{ Stats() data.LoaderStats })
	if !ok || r.toldWaiting {
		return
	}
	s := loader.Stats()
	if s.Batches < waitsBatches || s.WaitShare() < waitsTooLong {
		return
	}
	r.toldWaiting = true
	r.report.Notice("training waits for data: " + s.String())
}
