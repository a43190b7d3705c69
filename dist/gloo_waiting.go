// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/cohort-ml/cohort/dist/store"
)

// reportWaiting writes what this rank waits for until stop is called, if that takes long,
// as [meeting.reportWaiting] does in a job of Cohort's own.
func (j *glooJob) reportWaiting(ctx context.Context, what func(context.Context) string) (stop func()) {
	return waitAloud(ctx, os.Stderr, j.rank, what)
}

// meetingPoint names where the ranks meet.
func (j *glooJob) meetingPoint() string {
	if j.glooPlace.agent && j.addr != "" {
		return "the launcher's store at " + j.addr
	}
	return cmp.Or(j.addr, j.file, "the store that Init was given")
}

// notServed is what a rank waits for that has not reached the store.
func (j *glooJob) notServed(context.Context) string {
	if j.glooPlace.agent {
		return j.meetingPoint()
	}
	return toJoin("rank 0", j.worldSize, j.meetingPoint())
}

// notJoined says how many ranks have not come to a store: who they are is not known of
// PyTorch's before they publish where they are reached.
func (j *glooJob) notJoined(base store.Store) func(context.Context) string {
	return func(ctx context.Context) string {
		if j.server == nil && j.client == nil {
			return toJoin("another rank", j.worldSize, j.meetingPoint())
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
		return toJoin(ranks, j.worldSize, j.meetingPoint())
	}
}

// notPublished names the ranks that have not said where they are reached.
func (j *glooJob) notPublished(ctx context.Context) string {
	var ranks []int
	for r := range j.worldSize {
		if set, err := isSet(ctx, j.keys, j.pytorch.firstKey(r)); err != nil {
			return ""
		} else if !set {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return ""
	}
	return toJoin(ranksText(ranks), j.worldSize, j.meetingPoint())
}

// firstKey is the first that a rank sets in the part of the store that the group of all
// ranks has.
func (p pytorch) firstKey(rank int) string {
	gloo, _ := glooPrefixes(p, "0")
	first := gloo + "/0/"
	if p == pytorch1_13 {
		first += "rank_" // the host: the address waits for that of others
	}
	return first + strconv.Itoa(rank)
}
