// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/liveness"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Guests are the ranks of Cohort in a job of another backend, such as PyTorch's, in which
// they are not all ranks. They form groups among themselves, as in a job of their own: each
// says in the job's store how it is reached when it makes its first such group.
type Guests struct {
	settings        *backend.Settings
	rank, worldSize int
	addr            string // where all ranks of the job meet
	agent           *liveness.Watch
	keys            store.Store

	mu      sync.Mutex
	meeting *meeting
	book    []native.Address
}

// NewGuests returns this rank's part of the guests. keys is theirs alone.
func NewGuests(s *backend.Settings, rank, worldSize int, addr string, agent *liveness.Watch, keys store.Store) *Guests {
	return &Guests{settings: s, rank: rank, worldSize: worldSize, addr: addr, agent: agent, keys: keys}
}

// guest is what one tells the others.
type guest struct {
	introduction
	TCP string `json:"tcp"`
}

// NewGroup is [backend.Job]'s. The group's ranks are guests, as the caller has checked.
func (s *Guests) NewGroup(ctx context.Context, end context.CancelCauseFunc, parent *backend.Parent, w *backend.Wish) (backend.Forming, error) {
	world := make([]int, len(w.Ranks))
	for i, r := range w.Ranks {
		world[i] = parent.World[r]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.meet(ctx, world); err != nil {
		return nil, err
	}
	own := *w
	own.Backend = ""
	f, err := newSubgroup(s.meeting, s.meeting.open, end, parent, &own)
	if err != nil {
		return nil, err
	}
	f.plan.Where = s.meeting.where(world)
	return f, nil
}

// meet learns how guests among ranks of the job are reached, and lets them
// know how this one is.
func (s *Guests) meet(ctx context.Context, world []int) error {
	if s.meeting == nil {
		if err := s.open(ctx); err != nil {
			return err
		}
	}
	for _, r := range world {
		if s.meeting.all[r].PID != 0 {
			continue
		}
		text, err := s.keys.Get(ctx, strconv.Itoa(r))
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("rank %d has not come: it is no Go rank, or makes no such group: %w", r, ctxerr.Of(ctx))
			}
			return err
		}
		var g guest
		if err := json.Unmarshal(text, &g); err != nil {
			return fmt.Errorf("what rank %d says of itself: %w", r, err)
		}
		if err := goTogether(s.rank, &s.meeting.me, r, &g.introduction); err != nil {
			return err
		}
		s.meeting.all[r], s.book[r] = g.introduction, native.Address{Unix: g.Unix, TCP: g.TCP}
	}
	s.meeting.fabric.SetBook(slices.Clone(s.book))
	return nil
}

// open opens the ports at which the other guests reach this one.
func (s *Guests) open(ctx context.Context) (err error) {
	m := &meeting{settings: s.settings, place: place{s.rank, s.worldSize, s.addr}, agent: s.agent}
	if m.token, err = transport.TokenFromEnv(); err != nil {
		return err
	}
	m.me = introduction{PID: os.Getpid(), WorldSize: s.worldSize, Node: NodeID(s.settings.Node), Agreed: agreed(s.settings.Algorithms, s.settings.Silence)}
	m.me.Host, _ = os.Hostname() // for messages only
	if err := m.readEnvironment(); err != nil {
		return err
	}
	m.all = make([]introduction, s.worldSize)
	m.fabric = native.NewFabric(m.token, m.encrypt)
	defer func() {
		if err != nil {
			_ = m.fabric.Close()
		}
	}()
	if err := m.listenUnix(); err != nil {
		return err
	}
	g := guest{}
	if g.TCP, err = m.listen(ctx); err != nil {
		return err
	}
	g.introduction = m.me
	text, err := json.Marshal(g)
	if err != nil {
		return err
	}
	if err := s.keys.Set(ctx, strconv.Itoa(s.rank), text); err != nil {
		return err
	}
	s.meeting, s.book = m, make([]native.Address, s.worldSize)
	m.all[s.rank], s.book[s.rank] = m.me, native.Address{Unix: g.Unix, TCP: g.TCP}
	return nil
}

// Close gives back what the guests' groups have in common; nil has nothing.
func (s *Guests) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meeting == nil {
		return nil
	}
	return s.meeting.fabric.Close()
}
