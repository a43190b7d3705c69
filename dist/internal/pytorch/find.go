// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// findPyTorch finds out which PyTorch the other ranks run, unless it was said.
func (j *job) findPyTorch(ctx context.Context, base store.Store) error {
	said := j.said
	found, earliest, latest := release2, release2_2, release2
	var err error
	switch {
	case j.server != nil:
		if err := j.server.Join(ctx, j.worldSize); err != nil {
			return err
		}
		if found, latest, err = heardPyTorch(ctx, base); err != nil {
			return err
		}
	case j.client == nil:
		if found = said; said == anyRelease {
			if found, err = j.seePyTorch(ctx, base); err != nil {
				return err
			}
		}
	case j.client.Generation() == store.PyTorch1:
		found, j.alone = Release1_13, true
	default:
		hosted, err := meeting.IsSet(ctx, base, store.PyTorchHosted)
		if err != nil {
			return err
		}
		if !hosted { // PyTorch serves it, and speaks for all
			j.alone = true
			first, last, err := j.client.Releases(ctx)
			if err != nil {
				return err
			}
			if earliest = Release(200 + first); last > 0 {
				latest = Release(200 + last)
				found = earliest
			}
			break
		}
		if err := awaitJoined(ctx, base, j.worldSize); err != nil {
			return err
		}
		if found, latest, err = heardPyTorch(ctx, base); err != nil {
			return err
		}
	}
	if said != anyRelease && (said == Release1_13) != (found == Release1_13) {
		return fmt.Errorf("WithPyTorch says %v, and the ranks that have come run %v", said, found)
	}
	switch {
	case said != anyRelease && said != release2:
		found, earliest, latest = said, said, said
	case found == Release1_13:
		earliest, latest = found, found
	case said == release2:
		found = said
	case latest != release2:
		j.guess = fmt.Sprintf("2.%d to 2.%d", earliest%100, latest%100)
	}
	j.release, j.names.may = found, namings(earliest, latest)
	return j.findAttempt(ctx, base, earliest, latest)
}

// heardPyTorch returns the oldest PyTorch that a store of Cohort's has heard, and until
// which release they speak so. Go ranks speak as the newest does.
func heardPyTorch(ctx context.Context, base store.Store) (found, latest Release, err error) {
	if old, err := meeting.IsSet(ctx, base, store.PyTorchSpoken1); old || err != nil {
		return Release1_13, Release1_13, err
	}
	if old, err := meeting.IsSet(ctx, base, store.PyTorchSpoken2); old || err != nil {
		return release2_2, 204, err
	}
	return release2, release2, nil
}

// findAttempt finds out whether the others keep to a part of the launcher's store that is
// for this start of the ranks, as releases up to 2.5 do.
func (j *job) findAttempt(ctx context.Context, base store.Store, earliest, latest Release) error {
	const last = Release(205)
	switch {
	case j.settings.Store != nil || !j.place.agent:
		return nil
	case earliest > last:
		return nil
	case latest <= last:
		j.apart = true
		return nil
	}
	all, attempt := store.Prefix(base, "default_pg"), store.Prefix(base, attemptKeys()+"/default_pg")
	var look looks
	for delta := int64(1); ; delta = 0 {
		for r := range j.worldSize {
			if set, err := meeting.IsSet(ctx, attempt, release2.firstKey(r)); set || err != nil {
				j.apart = true
				return err
			}
			if set, err := meeting.IsSet(ctx, all, release2.firstKey(r)); set || err != nil {
				return err
			}
		}
		// Where all are Go ranks, none shows where.
		if come, err := attempt.Add(ctx, "cohort/ranks", delta); err != nil || come >= int64(j.worldSize) {
			return err
		}
		if !look.next(ctx) {
			return fmt.Errorf("no other rank has said where it is: %w", ctxerr.Of(ctx))
		}
	}
}

// attemptKeys begins the keys of this start of the ranks in a launcher's store.
func attemptKeys() string { return "/worker/attempt_" + envvar.RestartCount.Get("0") }

// seePyTorch finds out by what the others put into a store that says nothing of its
// clients, or that no other than Go ranks have come.
func (j *job) seePyTorch(ctx context.Context, base store.Store) (Release, error) {
	keys := j.prefixed(base)
	come, err := keys.Add(ctx, "cohort/ranks", 1)
	var look looks
	for n := come; err == nil; n, err = keys.Add(ctx, "cohort/ranks", 0) {
		come = n
		var p Release
		if p, err = j.shown(ctx, keys); err != nil {
			break
		}
		if p == anyRelease && come >= int64(j.worldSize) {
			p = release2
		}
		if p != anyRelease {
			return p, nil
		}
		look.next(ctx) // the store says if the time is up
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%d of %d ranks have come to %s: %w", come, j.worldSize, j.meetingPoint(), ctxerr.Of(ctx))
	}
	return anyRelease, err
}

// shown says which PyTorch's rank has put something into the store, anyRelease while none
// has. What Go ranks put there they do when they know: it is right too.
func (j *job) shown(ctx context.Context, keys store.Store) (Release, error) {
	for _, p := range []Release{Release1_13, release2} {
		for r := range j.worldSize {
			if set, err := meeting.IsSet(ctx, keys, p.firstKey(r)); set {
				return p, nil
			} else if err != nil {
				return anyRelease, err
			}
		}
	}
	return anyRelease, nil
}
