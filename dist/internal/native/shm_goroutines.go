// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// GoRanksOptions are for tests of what processes do, without processes.
type GoRanksOptions struct {
	// Private makes no data reachable for other ranks, so that all of it passes through the
	// staging slots.
	Private bool
}

// NewGoRanks returns the backends of a group whose ranks are goroutines of
// this process. cfg.Rank is ignored; cfg.Members gives the number of ranks.
func NewGoRanks(cfg Config, opts GoRanksOptions) []*Shm {
	n := len(cfg.Members)
	w := &goWorld{pipes: map[goPipe]*pipeBlock{}}
	if !opts.Private {
		w.lent = make([][2]lending, n)
		w.messages = map[uint64][]byte{}
	}
	seg, park := newLocalSegment(n), newGoParking(n)
	ranks, b := make([]*Shm, n), &board{track: newTracker(n)}
	all := make([]*Shm, n) // ranks is the caller's
	for r := range ranks {
		cfg.Rank = r
		s := &Shm{cfg: cfg, n: n, seg: seg, park: park, space: w, board: b, gone: make([]atomic.Bool, n), scratch: newScratch(n)}
		if r != 0 {
			s.cfg.Explain = nil // one explains for all
		}
		s.pipes.open = func(_ context.Context, _ *operation.Call, key pipeKey) (*pipe, error) {
			if key.outgoing {
				return &pipe{block: w.pipe(goPipe{s.cfg.Rank, key.peer, key.use})}, nil
			}
			return &pipe{block: w.pipe(goPipe{key.peer, s.cfg.Rank, key.use})}, nil
		}
		s.pipes.opened = func(key pipeKey) *pipe {
			w.mu.Lock()
			defer w.mu.Unlock()
			if b := w.pipes[goPipe{key.peer, s.cfg.Rank, key.use}]; b != nil {
				return &pipe{block: b}
			}
			return nil
		}
		s.settle = s.settleHere(all)
		s.ask = func(rank int, _ <-chan struct{}) fault.Doing {
			if !all[rank].come.Load() {
				return fault.Doing{}
			}
			return all[rank].cfg.doing(s.cfg.Rank)
		}
		s.come.Store(true)
		ranks[r], all[r] = s, s
	}
	return ranks
}

// GoMeetings is where ranks that are goroutines of one process meet to form groups. The first
// rank to come to a group makes it for all.
type GoMeetings struct {
	opts GoRanksOptions

	mu    sync.Mutex
	begun map[string]*goMeeting // by key, until all have come
}

type goMeeting struct {
	agreed uint64
	ranks  []*Shm // nil for ranks that have come; empty when all that came have left
	left   int
	there  int // how many have come and not closed the group
	gone   int // the rank that closed it last
}

// NewGoMeetings returns meetings that make groups with the given options.
func NewGoMeetings(opts GoRanksOptions) *GoMeetings {
	return &GoMeetings{opts: opts, begun: map[string]*goMeeting{}}
}

// Join returns a rank's backend in a group, and does not wait for the others.
func (m *GoMeetings) Join(cfg Config) (*Shm, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.begun[cfg.Key]
	if g == nil {
		g = &goMeeting{agreed: cfg.Agreed, ranks: NewGoRanks(cfg, m.opts), left: len(cfg.Members)}
		for _, s := range g.ranks {
			s.come.Store(false)
		}
		m.begun[cfg.Key] = g
	}
	if g.ranks == nil {
		// The others have come, waited in vain and left.
		if g.left--; g.left == 0 {
			delete(m.begun, cfg.Key)
		}
		return nil, cfg.faultError(nil, g.gone, kindLeft, "")
	}
	if cfg.Rank >= len(g.ranks) || g.ranks[cfg.Rank] == nil {
		return nil, fmt.Errorf("rank %d has joined group %q before", cfg.Rank, cfg.Group)
	}
	s := g.ranks[cfg.Rank]
	g.ranks[cfg.Rank] = nil
	g.there++
	s.onClose = func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		g.leave(cfg.Rank)
		return nil
	}
	if g.left--; g.left == 0 {
		delete(m.begun, cfg.Key)
	}
	if g.agreed != cfg.Agreed {
		g.leave(cfg.Rank)
		return nil, s.fail(fmt.Errorf("rank %d has made group %q with other options than the first to come", cfg.Rank, cfg.Group))
	}
	s.cfg.Timeout, s.cfg.Site, s.cfg.Doing = cfg.Timeout, cfg.Site, cfg.Doing // its own affair
	s.cfg.Progress, s.cfg.Explain = cfg.Progress, cfg.Explain
	s.come.Store(true)
	return s, nil
}

// leave notes that a rank which had come has left. The memory of a group that was never
// complete goes with the last such rank.
func (g *goMeeting) leave(rank int) {
	if g.there--; g.there == 0 {
		g.ranks, g.gone = nil, rank
	}
}

// goWorld is what goroutine ranks have in common beside the segment.
type goWorld struct {
	lent [][2]lending // by rank and parity of the call; nil: nothing is reachable

	mu       sync.Mutex
	pipes    map[goPipe]*pipeBlock
	messages map[uint64][]byte // lent to a receive, by number
	lastID   uint64
}

// goPipe names a pipe.
type goPipe struct {
	from, to int
	use      pipeUse
}

// lending is the data that a rank has lent for a call. It is written before
// the call is posted and read after.
type lending struct{ in, out []byte }

func (w *goWorld) lend(rank int, c *operation.Call, d *collective.Data, out bool) (location, bool) {
	if w.lent == nil || c.Op == operation.Barrier {
		return location{}, false
	}
	data := d.Bytes()
	switch {
	case c.Op == operation.Send:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lastID++
		w.messages[w.lastID] = data
		return location{offset: w.lastID}, true
	case out:
		w.lent[rank][c.Seq&1].out = data
	default:
		w.lent[rank][c.Seq&1].in = data
	}
	return location{}, true
}

func (w *goWorld) reach(_ context.Context, peer int, c *operation.Call, at location, out bool, offset, size int) ([]byte, error) {
	var data []byte
	switch {
	case c.Op == operation.Recv:
		w.mu.Lock()
		data = w.messages[at.offset]
		delete(w.messages, at.offset)
		w.mu.Unlock()
	case out:
		data = w.lent[peer][c.Seq&1].out
	default:
		data = w.lent[peer][c.Seq&1].in
	}
	if offset > len(data) || size > len(data)-offset {
		return nil, fmt.Errorf("%d bytes were lent, want %d at %d", len(data), size, offset)
	}
	return data[offset:][:size:size], nil
}

func (w *goWorld) close() error { return nil }

func (w *goWorld) pipe(key goPipe) *pipeBlock {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pipes[key] == nil {
		w.pipes[key] = (*pipeBlock)(unsafe.Pointer(unsafe.SliceData(aligned(int(unsafe.Sizeof(pipeBlock{}))))))
	}
	return w.pipes[key]
}

// aligned returns cleared memory that begins at a cache line.
func aligned(size int) []byte {
	words := make([]uint64, size/8+8)
	start := unsafe.Pointer(unsafe.SliceData(words))
	skip := -uintptr(start) & 63
	return unsafe.Slice((*byte)(unsafe.Add(start, skip)), size)
}
