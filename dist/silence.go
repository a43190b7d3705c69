// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"errors"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// DefaultSilence is for how long nothing may be heard of a rank before the
// others give it up, where neither [WithSilence] nor COHORT_SILENCE says
// otherwise.
const DefaultSilence = 3 * time.Second

const (
	minSilence = envvar.MinSilence
	maxSilence = envvar.MaxSilence
)

// WithSilence sets for how long nothing may be heard of a rank before the
// others give it up, in place of [DefaultSilence] or COHORT_SILENCE: whether its
// process is stopped, its machine has gone or the line to it is cut. It is time in which
// the line could have carried something: where TCP has lost something and pauses before
// it sends that again, the rank has until after the next try, which is a second at most, or
// a third of a limit beyond three (on Linux before 6.15 as long as the limit), so that an outage shorter than
// the limit costs its time and no rank. Operations
// then fail with a [RankError] that names it, whose cause is [ErrSilent]. A
// group beats for that, by itself, so a rank that merely computes for long is
// not silent; 0 gives nobody up, for work with a debugger. All ranks of a group
// have the same limit. Ranks that are goroutines of one process are never
// silent. Ranks of PyTorch do not beat: in a PyTorch job it is an option of the groups
// that [Group.NewGroup] makes of Go ranks.
func WithSilence(d time.Duration) Option {
	return func(o *options) error {
		if d != 0 && (d < minSilence || d > maxSilence) {
			return fmt.Errorf("a silence limit of %v: want 0 (none) or %v to %v", d, minSilence, maxSilence)
		}
		o.silence, o.silenceSaid = d, true
		return nil
	}
}

// silenceFromEnv takes the limit that the environment gives, if it does.
func (o *options) silenceFromEnv() (err error) {
	o.silence, err = envvar.Silence.DurationOr(o.silence, minSilence, maxSilence)
	return err
}

// errNoBeats is WithSilence for a group over gloo.
var errNoBeats = errors.New("WithSilence: nothing is heard of PyTorch's ranks between their calls, so none is given up for silence; groups that NewGroup makes with WithBackend(\"native\") take it")
