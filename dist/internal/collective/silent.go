// SPDX-License-Identifier: Apache-2.0

package collective

import "fmt"

// SilentError is the cause in a [RankError] that [ErrSilent] stands for.
type SilentError struct {
	Text string // for how long, and what else is known: "for 3s; its process is stopped"
	Here bool   // it is this rank of which the others heard nothing
}

func (e *SilentError) Error() string { return fmt.Sprintf("%v %s", ErrSilent, e.Text) }

func (e *SilentError) Unwrap() error { return ErrSilent }
