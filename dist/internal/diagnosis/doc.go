// SPDX-License-Identifier: Apache-2.0

// Package diagnosis finds out what is wrong while the ranks of a job wait: a [Watchdog] in
// each rank looks now and then at the calls that its flight recorder knows.
//
// deadlock.go finds two ranks that wait for each other in calls that do not meet, and ends
// their groups. overdue.go writes which rank the others wait for, and where that rank's
// program is, when a call takes too long. blackbox.go writes the flight recorder.
//
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
package diagnosis

import (
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
)

// Group is a group of this rank as the watchdog sees it.
type Group interface {
	Name() string
	Rank() int
	Size() int
	World() []int            // the ranks' numbers in the job, which stay as they are
	Members() []fault.Member // by rank
	// Asker asks other members what they do; nil where they cannot be asked.
	Asker() backend.Asker
	// Doing returns what this rank is doing, for another member.
	Doing(asker int) fault.Doing
	// UsualStep is how long a step takes, as far as it is known.
	UsualStep() time.Duration
	// End fails the group with an error, unless this rank has left it.
	End(err error)
}
