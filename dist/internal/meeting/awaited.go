// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
)

// A member that waits for the others of a new group says so in the job's store,
// unless they come soon: which group it waits for, at a place that members find
// whatever they call the group. Who runs out of time learns there who has come
// and waits like itself, and who waits for the same ranks under another name.
const (
	// sayAfter is how long the others have before a member says that it waits.
	sayAfter = 100 * time.Millisecond
	// askPatience is how long the store may take.
	askPatience = time.Second
)

// awaited is where members of a group say that they wait for it.
type awaited struct {
	spec  *backend.Spec
	said  bool
	timer *time.Timer
	done  chan struct{}
	stop  context.CancelFunc
	// settling is what may end after the group is there.
	settling sync.WaitGroup
}

func awaitedKey(s *backend.Spec, rank int) string {
	return "awaited/" + s.ByRanks + "/" + strconv.Itoa(rank)
}

// await begins to wait for the members of a group.
func await(ctx context.Context, s *backend.Spec) *awaited {
	a := &awaited{spec: s, done: make(chan struct{})}
	after := sayAfter
	if end, ok := ctx.Deadline(); ok {
		after = min(after, time.Until(end)/4)
	}
	ctx, a.stop = context.WithTimeout(ctx, after+askPatience)
	a.timer = time.AfterFunc(after, func() {
		defer close(a.done)
		a.said = a.say(ctx) == nil
	})
	return a
}

func (a *awaited) say(ctx context.Context) error {
	s := a.spec
	return s.Keys.Set(ctx, awaitedKey(s, s.Rank), []byte(s.Key))
}

// over ends the wait: all have come, or err says why they have not, and the
// error to report is returned.
func (a *awaited) over(ctx context.Context, err error) error {
	a.stop()
	begun := !a.timer.Stop()
	if err == nil {
		if begun {
			a.settling.Go(a.unsay) // the store's rank may have gone: nobody waits for it
		}
		return nil
	}
	if begun {
		<-a.done
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), askPatience)
	defer cancel()
	if errors.Is(err, fault.ErrDied) || errors.Is(err, fault.ErrSilent) {
		return err // that says it; and it may be who serves the store
	}
	if !a.said && a.say(limit) != nil {
		return err
	}
	return whoWaits(limit, a.spec, err)
}

// unsay takes back what this rank has said, not to be found by who waits for
// another group of these members.
func (a *awaited) unsay() {
	if <-a.done; !a.said {
		return
	}
	limit, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	_, _ = a.spec.Keys.Delete(limit, awaitedKey(a.spec, a.spec.Rank))
}

// whoWaits returns the error of a group that did not come together in time,
// here or for a rank that has left, from what this rank knows of it and what
// the members have said.
func whoWaits(ctx context.Context, s *backend.Spec, err error) error {
	result := &fault.TimeoutError{Group: s.Name, Op: "init"}
	var late *fault.TimeoutError
	var left *fault.RankError
	switch {
	case errors.As(err, &late):
		result.Cause = late.Cause
	case errors.As(err, &left) && left.Group == s.Name && gaveUp(left) && said(ctx, s, left.Rank) == s.Key:
		result.Cause = fmt.Errorf("rank %d has given up: %w", left.Rank, context.DeadlineExceeded)
	default:
		return err
	}
	elsewhere := map[string][]string{} // by key: who waits for that group
	var known []fault.Member           // those that this rank has waited for
	for r, m := range s.Members {
		if r == s.Rank {
			continue
		}
		key := said(ctx, s, r)
		if key == s.Key {
			continue
		}
		if key != "" {
			elsewhere[key] = append(elsewhere[key], "rank "+strconv.Itoa(r))
		}
		result.Missing = append(result.Missing, m)
		if late != nil && slices.ContainsFunc(late.Missing, func(k fault.Member) bool { return k.Rank == r }) {
			known = append(known, m)
		}
	}
	if ctx.Err() != nil || len(result.Missing) == 0 {
		return err
	}
	if len(known) > 0 {
		result.Missing = known
	}
	text := "this rank waited for the group " + about(s.Key)
	for _, key := range slices.Sorted(maps.Keys(elsewhere)) {
		text += fmt.Sprintf("; the group %s of the same ranks is waited for by %s", about(key), strings.Join(elsewhere[key], ", "))
	}
	return fmt.Errorf("%w (%s)", result, text)
}

// gaveUp reports whether an error says of a rank that it has left or failed
// because others had not come.
func gaveUp(e *fault.RankError) bool {
	return errors.Is(e, fault.ErrLeft) || e.Signal == "" && !errors.Is(e, fault.ErrDied) && !errors.Is(e, fault.ErrSilent) && strings.Contains(e.Cause.Error(), " waiting for ")
}

// said returns the key of the group that a member has said it waits for, "" if
// it has not.
func said(ctx context.Context, s *backend.Spec, rank int) string {
	key, _ := Peek(ctx, s.Keys, awaitedKey(s, rank))
	return string(key)
}

// about describes a group by its key: its name, and which of that name it is.
func about(key string) string {
	name, count := key, ""
	if i := strings.LastIndexByte(key, ' '); i >= 0 {
		name = key[:i]
		_, count, _ = strings.Cut(key[i:], ".")
	}
	if count == "0" || count == "" {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q (number %s of that name, from 0)", name, count)
}
