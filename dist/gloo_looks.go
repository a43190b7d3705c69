// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

const (
	firstLookPause = 10 * time.Millisecond
	maxLookPause   = 250 * time.Millisecond
)

// looks spaces a rank's looks at what a store cannot be waited on for: less and less often,
// since every rank looks, at something for every rank.
type looks struct{ pause time.Duration }

// next waits until it is time for another look; it reports false when ctx ends before.
func (l *looks) next(ctx context.Context) bool {
	l.pause = min(max(l.pause+l.pause/4, firstLookPause), maxLookPause)
	timer := time.NewTimer(l.pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// awaitCount waits until a counter, which stands at n or more, has come to the number of
// ranks, each of which has added one when it had done something.
func awaitCount(ctx context.Context, keys store.Store, key string, n int64, numRanks int, done string) error {
	var look looks
	for n < int64(numRanks) {
		now, err := keys.Add(ctx, key, 0)
		if err == nil {
			n = now
		}
		switch {
		case n >= int64(numRanks):
		case ctx.Err() != nil || err == nil && !look.next(ctx):
			return fmt.Errorf("%d of %d ranks have %s: %w", n, numRanks, done, ctxerr.Of(ctx))
		case err != nil:
			return err
		}
	}
	return nil
}
