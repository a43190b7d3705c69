// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// introduction is what a rank tells the others about itself.
type introduction struct {
	Host      string `json:"host"`
	PID       int    `json:"pid"`
	WorldSize int    `json:"world_size"`
	Client    string `json:"client,omitempty"` // its connection to the store, as rank 0 sees it
	Node      string `json:"node"`
	Transport string `json:"transport"`
	Encrypt   string `json:"encrypt"`
	Agreed    uint64 `json:"agreed"`
	Unix      string `json:"unix,omitempty"`
}

// firstComer is the introduction of whoever came first, with which all others
// compare their own at once: rank 0 may be waiting for ranks that never come.
type firstComer struct {
	Rank int `json:"rank"`
	introduction
}

// agree returns an error if this rank's introduction does not go with that of
// the first to come.
func (m *meeting) agree(ctx context.Context) error {
	text, err := json.Marshal(firstComer{m.rank, m.me})
	if err != nil {
		return err
	}
	current, ok, err := m.store.CompareAndSet(ctx, firstKey, nil, text)
	if err != nil || ok {
		return err
	}
	var first firstComer
	if err := json.Unmarshal(current, &first); err != nil {
		return fmt.Errorf("the introduction of the first to come: %w", err)
	}
	return goTogether(first.Rank, &first.introduction, m.rank, &m.me)
}

// goTogether returns why two ranks cannot be in one job.
func goTogether(a int, of *introduction, b int, with *introduction) error {
	if b < a {
		a, of, b, with = b, with, a, of
	}
	switch {
	case of.WorldSize != with.WorldSize:
		return fmt.Errorf("the number of ranks (%s) is %d on rank %d and %d on rank %d: set it to the same on all", envvar.WorldSize, of.WorldSize, a, with.WorldSize, b)
	case of.Transport != with.Transport:
		return fmt.Errorf("%s is %q on rank %d and %q on rank %d: set it to the same on all", envvar.Transport, of.Transport, a, with.Transport, b)
	case of.Encrypt != with.Encrypt:
		return fmt.Errorf("%s is %q on rank %d and %q on rank %d: set it to the same on all", envvar.Encrypt, of.Encrypt, a, with.Encrypt, b)
	case of.Agreed != with.Agreed:
		return fmt.Errorf("rank %d and rank %d give different options to Init: WithDeterministic is for all or none, and WithSilence (%s) the same on all", a, b, envvar.Silence)
	}
	return nil
}

// exchange gives every rank what each rank has to say, by rank. Rank 0 waits
// for all and publishes the whole, so that n ranks make some 2n requests.
func exchange[T any](ctx context.Context, m *meeting, what string, mine T) ([]T, error) {
	whole := listKey(what)
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	if current, ok, err := m.store.CompareAndSet(ctx, entryKey(what, m.rank), nil, value); err != nil {
		return nil, err
	} else if !ok {
		why := ""
		if m.settings.Store != nil {
			why = "; a store that outlives a run wants a prefix for each"
		}
		return nil, fmt.Errorf("a process has joined as rank %d before%s: %s", m.rank, why, current)
	}
	if m.rank == 0 {
		keys := make([]string, m.worldSize)
		for r := range keys {
			keys[r] = entryKey(what, r)
		}
		values, err := m.store.MultiGet(ctx, keys...)
		if err != nil {
			return nil, missingRanks(ctx, err)
		}
		raw := make([]json.RawMessage, len(values))
		for r, v := range values {
			raw[r] = v
		}
		list, err := json.Marshal(raw)
		if err != nil {
			return nil, err
		}
		if err := m.store.Set(ctx, whole, list); err != nil {
			return nil, err
		}
	}
	list, err := m.store.Get(ctx, whole)
	if err != nil {
		return nil, m.whoIsMissing(ctx, what, err)
	}
	if bytes.HasPrefix(list, []byte("{")) {
		var no struct{ Failed json.RawMessage }
		if err := json.Unmarshal(list, &no); err != nil {
			return nil, fmt.Errorf("the list of %ss from rank 0: %w", what, err)
		}
		return nil, parseFailure(no.Failed).error()
	}
	var all []T
	if err := json.Unmarshal(list, &all); err != nil {
		return nil, fmt.Errorf("the list of %ss from rank 0: %w", what, err)
	}
	if len(all) != m.worldSize {
		return nil, fmt.Errorf("the list of %ss from rank 0 has %d entries, want %d", what, len(all), m.worldSize)
	}
	return all, nil
}

// whoIsMissing asks the store, when the wait for a list has run out of time, who
// has not come.
func (m *meeting) whoIsMissing(ctx context.Context, what string, err error) error {
	if ctx.Err() == nil {
		return err
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellPatience)
	defer cancel()
	keys := make([]string, m.worldSize)
	for r := range keys {
		keys[r] = entryKey(what, r)
	}
	if _, e := m.store.MultiGet(limit, keys...); e != nil {
		return missingRanks(ctx, e)
	}
	return &fault.TimeoutError{Group: backend.World, Op: "init", Missing: []fault.Member{{}}, Cause: ctxerr.Of(ctx)}
}

// missingRanks makes a time-out that names ranks of one that names keys.
func missingRanks(ctx context.Context, err error) error {
	var se *store.Error
	if !errors.As(err, &se) || ctx.Err() == nil {
		return err
	}
	late := &fault.TimeoutError{Group: backend.World, Op: "init", Cause: ctxerr.Of(ctx)}
	for _, k := range se.Keys {
		if r, err := strconv.Atoi(k[strings.LastIndexByte(k, '/')+1:]); err == nil {
			late.Missing = append(late.Missing, fault.Member{Rank: r})
		}
	}
	if len(late.Missing) == 0 {
		return err
	}
	return late
}
