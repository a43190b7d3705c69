// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"strings"

	"github.com/cohort-ml/cohort/internal/ending"
)

// Ending returns why ctx has ended, as the cause of an error about an operation:
// see [ending.Of].
func Ending(ctx context.Context) error { return ending.Of(ctx) }

// reason returns what the cause of a time-out says beyond that it is one.
func reason(cause error) string {
	if cause == nil {
		return ""
	}
	text := cause.Error()
	for _, plain := range []error{context.Canceled, context.DeadlineExceeded} {
		if text == plain.Error() {
			return ""
		}
		text = strings.TrimSuffix(text, ": "+plain.Error())
	}
	return text
}
