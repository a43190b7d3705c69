// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// findPyTorch finds out which PyTorch the other ranks run, unless it was said.
func (j *glooJob) findPyTorch(ctx context.Context, base store.Store) error {
	said := j.options.pytorch
	found, earliest, latest := pytorch2, pytorch2_2, pytorch2
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
		if found = said; said == pytorchAny {
			if found, err = j.seePyTorch(ctx, base); err != nil {
				return err
			}
		}
	case j.client.Generation() == store.PyTorch1:
		found, j.alone = pytorch1_13, true
	default:
		hosted, err := isSet(ctx, base, store.PyTorchHosted)
		if err != nil {
			return err
		}
		if !hosted { // PyTorch serves it, and speaks for all
			j.alone = true
			first, last, err := j.client.Releases(ctx)
			if err != nil {
				return err
			}
			if earliest = pytorch(200 + first); last > 0 {
				latest = pytorch(200 + last)
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
	if said != pytorchAny && (said == pytorch1_13) != (found == pytorch1_13) {
		return fmt.Errorf("WithPyTorch says %v, and the ranks that have come run %v", said, found)
	}
	switch {
	case said != pytorchAny && said != pytorch2:
		found, earliest, latest = said, said, said
	case found == pytorch1_13:
		earliest, latest = found, found
	case said == pytorch2:
		found = said
	case latest != pytorch2:
		j.guess = fmt.Sprintf("2.%d to 2.%d", earliest%100, latest%100)
	}
	j.pytorch, j.names.may = found, namings(earliest, latest)
	return j.findAttempt(ctx, base, earliest, latest)
}

// heardPyTorch returns the oldest PyTorch that a store of Cohort's has heard, and until
// which release they speak so. Go ranks speak as the newest does.
func heardPyTorch(ctx context.Context, base store.Store) (found, latest pytorch, err error) {
	if old, err := isSet(ctx, base, store.PyTorchSpoken1); old || err != nil {
		return pytorch1_13, pytorch1_13, err
	}
	if old, err := isSet(ctx, base, store.PyTorchSpoken2); old || err != nil {
		return pytorch2_2, 204, err
	}
	return pytorch2, pytorch2, nil
}

// findAttempt finds out whether the others keep to a part of the launcher's store that is
// for this start of the ranks, as releases up to 2.5 do.
func (j *glooJob) findAttempt(ctx context.Context, base store.Store, earliest, latest pytorch) error {
	const last = pytorch(205)
	switch {
	case j.options.store != nil || !j.glooPlace.agent:
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
			if set, err := isSet(ctx, attempt, pytorch2.firstKey(r)); set || err != nil {
				j.apart = true
				return err
			}
			if set, err := isSet(ctx, all, pytorch2.firstKey(r)); set || err != nil {
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
func (j *glooJob) seePyTorch(ctx context.Context, base store.Store) (pytorch, error) {
	keys := j.prefixed(base)
	come, err := keys.Add(ctx, "cohort/ranks", 1)
	var look looks
	for n := come; err == nil; n, err = keys.Add(ctx, "cohort/ranks", 0) {
		come = n
		var p pytorch
		if p, err = j.shown(ctx, keys); err != nil {
			break
		}
		if p == pytorchAny && come >= int64(j.worldSize) {
			p = pytorch2
		}
		if p != pytorchAny {
			return p, nil
		}
		look.next(ctx) // the store says if the time is up
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%d of %d ranks have come to %s: %w", come, j.worldSize, j.meetingPoint(), ctxerr.Of(ctx))
	}
	return pytorchAny, err
}

// shown says which PyTorch's rank has put something into the store, pytorchAny while none
// has. What Go ranks put there they do when they know: it is right too.
func (j *glooJob) shown(ctx context.Context, keys store.Store) (pytorch, error) {
	for _, p := range []pytorch{pytorch1_13, pytorch2} {
		for r := range j.worldSize {
			if set, err := isSet(ctx, keys, p.firstKey(r)); set {
				return p, nil
			} else if err != nil {
				return pytorchAny, err
			}
		}
	}
	return pytorchAny, nil
}
