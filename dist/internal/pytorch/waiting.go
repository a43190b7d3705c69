// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/store"
)

// waits does what waits for other ranks. If that takes long, it is written for whom, as
// [meeting.reportWaiting] does in a job of Cohort's own; an error that names nobody says so too.
func (j *job) waits(ctx context.Context, what func(context.Context) string, do func() error) error {
	missing := ""
	stop := meeting.WaitAloud(ctx, os.Stderr, j.rank, func(ctx context.Context) string {
		text := what(ctx)
		missing = cmp.Or(text, missing)
		return text
	})
	err := do()
	stop()
	if named := (*fault.RankError)(nil); err != nil && missing != "" && !errors.As(err, &named) {
		return fmt.Errorf("%w; it had been waiting for %s", err, missing)
	}
	return err
}

// meetingPoint names where the ranks meet.
func (j *job) meetingPoint() string {
	at := cmp.Or(j.addr, j.file, "the store that Init was given")
	if j.place.agent && j.addr != "" {
		at = "the launcher's store at " + j.addr
	}
	switch {
	case j.alone && j.release == Release1_13:
		return at + ", PyTorch 1.13's store: a rank that runs 2.x would not get in"
	case j.alone:
		return at + ", PyTorch 2's store: a rank that runs 1.13 would not get in"
	}
	return at
}

// notServed is what a rank waits for that has not reached the store.
func (j *job) notServed(context.Context) string {
	if j.place.agent {
		return j.meetingPoint()
	}
	return meeting.ToJoin("rank 0", j.worldSize, j.meetingPoint())
}

// notJoined says how many ranks have not come to a store: who they are is not known of
// PyTorch's before they publish where they are reached.
func (j *job) notJoined(base store.Store) func(context.Context) string {
	return func(ctx context.Context) string {
		if j.server == nil && j.client == nil {
			return meeting.ToJoin("another rank", j.worldSize, j.meetingPoint())
		}
		n, err := base.Add(ctx, joinedKey, 0)
		missing := j.worldSize - int(n)
		if err != nil || missing <= 0 {
			return ""
		}
		ranks := fmt.Sprintf("%d more ranks", missing)
		if missing == 1 {
			ranks = "1 more rank"
		}
		return meeting.ToJoin(ranks, j.worldSize, j.meetingPoint())
	}
}

// notPublished names the ranks that have not said where they are reached.
func (j *job) notPublished(ctx context.Context) string {
	var ranks []int
	for r := range j.worldSize {
		if set, err := meeting.IsSet(ctx, j.keys, j.release.firstKey(r)); err != nil {
			return ""
		} else if !set {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) > 1 && ranks[0] == 0 && j.alone && !j.place.agent {
		ranks = ranks[1:] // rank 0 serves the store, and waits for the others itself
	}
	if len(ranks) == 0 {
		return ""
	}
	return meeting.ToJoin(backend.RanksText(ranks), j.worldSize, j.meetingPoint()+j.asMany(ctx))
}

// asMany says of a store that counts who joins it that no more processes are to come, "" where
// more are.
func (j *job) asMany(ctx context.Context) string {
	var base store.Store
	switch {
	case j.place.agent: // which joins it, too
		return ""
	case j.server != nil:
		base = j.server.Store()
	case j.client != nil:
		base = j.client
	default:
		return ""
	}
	if n, err := base.Add(ctx, joinedKey, 0); err != nil || n < int64(j.worldSize) {
		return ""
	} else {
		return fmt.Sprintf("; %d processes have come there: do two have one RANK?", n)
	}
}

// firstKey is the first that a rank sets in the part of the store that the group of all
// ranks has.
func (p Release) firstKey(rank int) string {
	gloo, _ := glooPrefixes(p, "0")
	first := gloo + "/0/"
	if p == Release1_13 {
		first += "rank_" // the host: the address waits for that of others
	}
	return first + strconv.Itoa(rank)
}
