// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
)

// A rank that cannot form the group of all ranks says so in the store: else the
// others would wait for it, or see no more than that a connection has ended.
// The first word counts. Rank 0 waits for it beside all that it waits for, puts
// it where the others wait for the lists of all ranks, and serves the store until
// they have had the time to read it.
const (
	failedKey = "dist/" + backend.World + "/failed"
	toldKey   = "dist/" + backend.World + "/told"
	firstKey  = "dist/" + backend.World + "/first"

	// tellPatience is how long a rank that has lost another one waits for a
	// word about why, and then how long its own may take.
	tellPatience = 250 * time.Millisecond
	// maxReason bounds the text of a failure.
	maxReason = 2048
)

// lists are what the ranks tell all others while they form the group.
var lists = []string{"introduction", "address"}

func listKey(what string) string            { return "dist/" + backend.World + "/" + what }
func entryKey(what string, rank int) string { return listKey(what) + "/" + strconv.Itoa(rank) }

// failure is why the group was not formed, as a rank has put it into the store.
type failure struct {
	Rank int               `json:"rank"` // at fault
	Host string            `json:"host"`
	PID  int               `json:"pid"`
	Died bool              `json:"died,omitempty"`
	How  native.ProcessEnd `json:"how,omitzero"`   // of a rank that has died
	Late []int             `json:"late,omitempty"` // whom one missed that has run out of time
	Text string            `json:"text"`           // what another one said
}

func (f *failure) error() error {
	switch {
	case f.Died:
		return native.DeathError(backend.World, fault.Member{Rank: f.Rank, Host: f.Host, PID: f.PID}, f.How)
	case len(f.Late) > 0:
		e := &fault.TimeoutError{Group: backend.World, Op: "init", Cause: fmt.Errorf("rank %d has waited long enough: %w", f.Rank, context.DeadlineExceeded)}
		for _, r := range f.Late {
			e.Missing = append(e.Missing, fault.Member{Rank: r})
		}
		return e
	}
	return &fault.RankError{Rank: f.Rank, Host: f.Host, PID: f.PID, Group: backend.World, Op: "init", Cause: errors.New(f.Text)}
}

// parseFailure reads what stands in the store.
func parseFailure(text []byte) *failure {
	f := &failure{}
	if err := json.Unmarshal(text, f); err != nil {
		return &failure{Text: fmt.Sprintf("a rank failed, and what it said cannot be read: %v", err)}
	}
	f.Text = clip(f.Text)
	return f
}

func clip(text string) string {
	if len(text) > maxReason {
		return strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// failureOf returns what to tell of an error on this rank.
func (m *meeting) failureOf(err error) *failure {
	var other *fault.RankError
	if !errors.As(err, &other) {
		f := &failure{Rank: m.rank, Host: m.me.Host, PID: m.me.PID, Text: clip(backend.Within("", backend.World, err).Error())}
		var late *fault.TimeoutError
		if errors.As(err, &late) && late.Timeout() {
			for _, missing := range late.Missing {
				f.Late = append(f.Late, missing.Rank)
			}
		}
		return f
	}
	f := &failure{Rank: other.Rank, Host: other.Host, PID: other.PID, Died: errors.Is(other.Cause, fault.ErrDied), Text: clip(other.Cause.Error())}
	f.How = native.ProcessEnd{Known: other.Signal != "", Signal: other.Signal}
	return f
}

// settle makes an error of this rank's forming known to the others and returns
// the one to report: that of the rank which failed first, where this one has
// only lost it.
func (m *meeting) settle(err error) error {
	if m.store == nil {
		return err
	}
	lost := isLoss(err)
	var text []byte
	if lost {
		limit, cancel := context.WithTimeout(context.Background(), tellPatience)
		text, _ = m.store.Get(limit, failedKey) // its word may be on its way
		cancel()
	}
	limit, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	if mine, e := json.Marshal(m.failureOf(err)); e == nil && text == nil {
		text, _, _ = m.store.CompareAndSet(limit, failedKey, nil, mine)
	}
	if text != nil {
		var late *fault.TimeoutError // says as much as another one's
		if first := parseFailure(text); lost && first.Rank != m.rank && (first.Late == nil || !errors.As(err, &late)) {
			err = first.error()
		}
	} else if errors.Is(err, store.ErrLost) && m.client != nil {
		err = m.withoutStore(err)
	}
	if m.rank == 0 {
		m.spread(text)
	} else if n, e := m.store.Add(limit, toldKey, 1); e == nil && n == int64(m.worldSize-1) {
		_ = m.store.Set(limit, toldKey+"/all", []byte{1})
	}
	return err
}

// withoutStore returns the error of a rank that has lost rank 0, which serves the store.
func (m *meeting) withoutStore(err error) error {
	lost := &fault.RankError{Group: backend.World, Op: "init", Cause: err}
	if len(m.all) > 0 {
		lost.Host, lost.PID = m.all[0].Host, m.all[0].PID
	}
	return lost
}

// spread puts a failure where the others look, and waits until they have seen it,
// for as long as rank 0 serves the store for them.
func (m *meeting) spread(text []byte) {
	if text == nil {
		return
	}
	limit, cancel := context.WithTimeout(context.Background(), StorePatience)
	defer cancel()
	whole := append(append([]byte(`{"failed":`), text...), '}')
	for _, what := range lists {
		_, _, _ = m.store.CompareAndSet(limit, listKey(what), nil, whole)
	}
	if m.server != nil {
		_, _ = m.store.Get(limit, toldKey+"/all")
	}
}

// isLoss reports whether an error says no more than that another rank has gone,
// or has not come.
func isLoss(err error) bool {
	var late *fault.TimeoutError
	if backend.IsConsequence(err) || errors.As(err, &late) {
		return true
	}
	for _, end := range []error{store.ErrLost, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED, syscall.ENOENT} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// watchForming ends the forming, at rank 0, when another rank says that it has failed or,
// having introduced itself, closes its connection to the store without a word. stop
// ends both; m.joined the second, for ranks may leave as soon as all have joined.
func (m *meeting) watchForming(ctx context.Context, end context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if text, err := m.store.Get(ctx, failedKey); err == nil {
			end(parseFailure(text).error())
		}
	}()
	if m.server != nil {
		m.server.OnLeave(func(peer string) { m.lost(ctx, peer, end) })
		m.joined = func() { m.server.OnLeave(nil) }
	}
	return func() {
		if m.server != nil {
			m.server.OnLeave(nil)
		}
		cancel()
		<-done
	}
}

// lost takes the end of a client's connection.
func (m *meeting) lost(ctx context.Context, peer string, end context.CancelCauseFunc) {
	if m.look(ctx, failedKey) != nil {
		return // it has said why, or only follows
	}
	for r := 1; r < m.worldSize; r++ {
		text := m.look(ctx, entryKey("introduction", r))
		var in introduction
		if text == nil || json.Unmarshal(text, &in) != nil || in.Client != peer {
			continue
		}
		end(native.DeathError(backend.World, fault.Member{Rank: r, Host: in.Host, PID: in.PID}, m.agent.ProcessEnd(r)))
		return
	}
}

// look returns a key's value, nil if it has none.
func (m *meeting) look(ctx context.Context, key string) []byte {
	text, _ := Peek(ctx, m.store, key)
	return text
}
