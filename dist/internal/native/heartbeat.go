// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// beatPeriod is the time between two beats. A beat costs either side some
	// microseconds, so that what a group costs at rest cannot be measured.
	beatPeriod = 250 * time.Millisecond
	// manyRanks is the number of ranks above which the time grows in proportion, for the
	// hub exchanges beats with each rank.
	manyRanks = 64
	// beatsPerLimit is how many beats fit the silence limit at least.
	beatsPerLimit = 4
	// maxUnheard is how many beats are sent to a rank that sends none. Beats that it does
	// not read would fill the buffers on the way to it.
	maxUnheard = 64
	// busyLimits is after how many silence limits a process of this host counts as silent
	// although it uses processor time.
	busyLimits = 4
	// beatSize is the payload of a beat: see [Progress].
	beatSize = 32
	// nudgeGap is the least time between beats that are asked for. In a large group it is
	// nudgeShare for each rank.
	nudgeGap   = 10 * time.Millisecond
	nudgeShare = 500 * time.Microsecond
)

// heartbeat finds ranks that have fallen silent without having ended: the process is
// stopped, the machine has gone, or the network is cut. Both sides of every connection of a
// [star] send a beat now and then. A goroutine that does nothing else sends them, so that a
// rank beats however long its program computes. If the hub hears nothing of a spoke for the
// silence limit, the spoke is at fault; if a spoke hears nothing of the hub, the hub is.
//
// Four rules keep the heartbeat from accusing a healthy rank:
//
//   - What is lost on the network, the system sends again after a pause. The pause grows to
//     a second, or a third of the limit. If this side's system pauses when the limit is
//     over, the peer's system is taken to pause as long, and the limit grows by the pause.
//     It does not grow if this side's system has tried after the limit and got no answer.
//   - Time counts as silence only while this goroutine is awake and on time. A rank that was
//     stopped, or got no processor, must not accuse others.
//   - Bytes that have come and wait to be read count as heard.
//   - A process of this host that uses processor time has some more limits: where many
//     processes compete for few processors, its beats may come late.
type heartbeat struct {
	star   *star
	limit  time.Duration // 0: beats are sent, and nobody is accused
	period time.Duration
	peers  []peerBeats // by rank

	// of the hub
	mu    sync.Mutex
	track *tracker
	told  []byte // scratch: the table as it travels

	table atomic.Pointer[[]RankSkew] // nil until it is known
	nudge chan struct{}              // of one token

	begin sync.Once
	stop  chan struct{}
	ended chan struct{}
	conns []rankConn     // scratch
	mine  [beatSize]byte // likewise
}

// peerBeats is what this rank knows of the beats of another.
type peerBeats struct {
	frames  atomic.Uint64 // that have come from it
	seen    uint64        // of them at the last look
	missed  atomic.Int64  // ns since
	unheard int           // beats sent since
	accused bool
	ticks   uint64        // of processor time that its process had at half the limit
	near    bool          // it was looked at then
	pause   time.Duration // of the system before it tries the line again, last before the limit
}

type rankConn struct {
	rank int
	conn *transport.Conn
}

// newHeartbeat returns the heartbeat of a star, nil if it has none.
func newHeartbeat(s *star) *heartbeat {
	cfg := s.cfg
	if cfg.Silence <= 0 && cfg.Progress == nil {
		return nil
	}
	p := &heartbeat{star: s, limit: max(cfg.Silence, 0), period: beatPeriod * time.Duration(max(1, s.numRanks/manyRanks)), peers: make([]peerBeats, s.numRanks),
		nudge: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	if s.rank == 0 && cfg.Progress != nil {
		p.track = newTracker(s.numRanks)
	}
	if p.limit > 0 {
		p.period = min(p.period, p.limit/beatsPerLimit)
	}
	return p
}

// start starts the beats; later calls do nothing.
func (p *heartbeat) start() {
	if p != nil {
		p.begin.Do(func() { go p.run() })
	}
}

// close ends the beats for good.
func (p *heartbeat) close() {
	if p != nil {
		close(p.stop)
		p.begin.Do(func() { close(p.ended) })
		<-p.ended
	}
}

// took notes that a frame has come from a rank.
func (p *heartbeat) took(rank int) {
	if p != nil {
		p.peers[rank].frames.Add(1)
	}
}

// beaten takes a beat. The hub uses the sender's progress in it to find late ranks.
func (p *heartbeat) beaten(rank int, payload []byte) error {
	progress, err := parseProgress(payload)
	if err == nil && p != nil && p.track != nil {
		p.mu.Lock()
		p.track.add(rank, progress)
		p.mu.Unlock()
	}
	return err
}

// skew takes the hub's table of late ranks.
func (p *heartbeat) skew(rank int, payload []byte) error {
	if p == nil || rank != 0 {
		return errors.New("a table of late ranks from a rank that is not the hub")
	}
	table, err := parseSkew(payload, p.star.numRanks)
	if err == nil {
		p.table.Store(&table)
	}
	return err
}

// soon asks for a beat at once.
func (p *heartbeat) soon() {
	if p == nil {
		return
	}
	select {
	case p.nudge <- struct{}{}:
	default:
	}
}

// misses reports whether a rank is late with its beats, and may become silent.
func (p *heartbeat) misses(rank int) bool {
	return p != nil && p.limit > 0 && rank != p.star.rank && time.Duration(p.peers[rank].missed.Load()) >= 2*p.period
}

// latest returns the last table of late ranks.
func (p *heartbeat) latest() []RankSkew {
	if p != nil {
		if table := p.table.Load(); table != nil {
			return *table
		}
	}
	return nil
}

func (p *heartbeat) run() {
	defer close(p.ended)
	tick := time.NewTicker(p.period)
	defer tick.Stop()
	last := time.Now()
	beaten := last
	gap := max(nudgeGap, time.Duration(p.star.numRanks)*nudgeShare)
	for {
		nudged := false
		select {
		case <-p.stop:
			return
		case <-tick.C:
		case <-p.nudge:
			nudged = true
		}
		now := time.Now()
		if nudged && now.Sub(beaten) < gap {
			continue
		}
		p.conns = p.star.connections(p.conns[:0])
		beaten = now
		p.beat()
		if !nudged {
			awake := min(now.Sub(last), p.period*3/2)
			last = now
			p.look(awake)
			if p.limit > 0 && p.star.lines != nil {
				p.star.lines(p.limit)
			}
		}
	}
}

// beat tells the peers that this rank is alive, and how far it has come.
func (p *heartbeat) beat() {
	var mine Progress
	if report := p.star.cfg.Progress; report != nil {
		mine = report()
	}
	b := encodeProgress(p.mine[:0], mine)
	news := p.reckon(mine)
	for _, c := range p.conns {
		if peer := &p.peers[c.rank]; peer.unheard < maxUnheard {
			peer.unheard++
			// A connection that cannot be written has a reader that finds out.
			_ = c.conn.WriteFrame(frameBeat, b)
			if news != nil {
				_ = c.conn.WriteFrame(frameSkew, news)
			}
		}
	}
}

// reckon makes a new table of late ranks at the hub, if there is news, and returns it
// encoded.
func (p *heartbeat) reckon(mine Progress) []byte {
	if p.track == nil {
		return nil
	}
	p.mu.Lock()
	p.track.add(0, mine)
	table := p.track.table()
	p.mu.Unlock()
	if table == nil {
		return nil
	}
	p.table.Store(&table)
	p.told = encodeSkew(p.told[:0], table)
	return p.told
}

// look accuses the ranks of which nothing has come for too long.
func (p *heartbeat) look(awake time.Duration) {
	for _, c := range p.conns {
		peer := &p.peers[c.rank]
		if frames := peer.frames.Load(); frames != peer.seen {
			peer.seen, peer.unheard, peer.near, peer.pause = frames, 0, false, 0
			peer.missed.Store(0)
			continue
		}
		missed := time.Duration(peer.missed.Add(int64(awake)))
		if p.limit > 0 && !peer.near && missed >= p.limit/2 {
			if s, ok := p.star.cfg.neighbour(c.rank); ok {
				peer.ticks, peer.near = s.ticks, true
			}
		}
		if p.limit > 0 && missed < p.limit+p.period {
			if pause := c.conn.Backoff(); pause > 0 {
				peer.pause = min(pause, p.limit) + p.period
			}
		}
		wait := p.limit + peer.pause
		if p.limit > 0 && c.conn.Unanswered() >= p.limit {
			wait = p.limit
		}
		if p.limit > 0 && missed >= wait && !peer.accused {
			if c.conn.Pending() { // this rank has not had time to read
				peer.missed.Store(0)
				continue
			}
			s, local := p.star.cfg.neighbour(c.rank)
			if local && peer.near && s.ticks > peer.ticks && missed < busyLimits*p.limit+peer.pause {
				continue // it computes, and its heartbeat does not get a processor
			}
			peer.accused = true
			p.star.news(p.star.rank, c.rank, kindSilent, fmt.Sprintf("for %v%s", max(p.limit, missed.Round(p.limit)), s.why()))
		}
	}
}

// neighbour returns the state of a rank's process, if it is another process of this host.
func (cfg *Config) neighbour(rank int) (procState, bool) {
	m, me := cfg.Members[rank], cfg.Members[cfg.Rank]
	if m.PID <= 0 || m.PID == me.PID || m.Host != me.Host {
		return procState{}, false
	}
	return stateOf(m.PID)
}

// connections appends the star's connections to a list, in the order of ranks, so that the
// same rank is accused first each time.
func (s *star) connections(to []rankConn) []rankConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, c := range s.conns {
		to = append(to, rankConn{r, c})
	}
	slices.SortFunc(to, func(a, b rankConn) int { return a.rank - b.rank })
	return to
}

// retries is how often the system sends again, within a silence limit of more than three
// seconds, what the peer has not answered.
const retries = 3
