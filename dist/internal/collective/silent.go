// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"strings"
)

// SilentError is the cause in a [RankError] that [ErrSilent] stands for.
type SilentError struct {
	Text string // for how long, and what else is known: "for 3s; its process is stopped"
	Here bool   // it is this rank of which the others heard nothing
}

func (e *SilentError) Error() string {
	text := e.Text
	if e.Here { // which runs, or it would not say so
		text = strings.Replace(text, "; its process is stopped", "; its process was stopped", 1)
	}
	return fmt.Sprintf("%v %s", ErrSilent, text)
}

func (e *SilentError) Unwrap() error { return ErrSilent }
