// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// numBuckets is how many powers of two of microseconds latencies are counted in.
const numBuckets = 32

// methodStats counts the calls of one method, made to one peer or answered.
type methodStats struct {
	method, types, peer string // peer: empty for calls that are answered

	calls, failures  atomic.Uint64 // that have ended
	inFlight         atomic.Int64
	bytesIn, bytesUp atomic.Uint64 // received and sent
	microseconds     atomic.Uint64
	buckets          [numBuckets]atomic.Uint64

	told   atomic.Int64  // when a panic was written to standard error, 0: never
	untold atomic.Uint64 // panics since then
}

func (m *methodStats) begun() { m.inFlight.Add(1) }

// ended counts a call that has been answered.
func (m *methodStats) ended(began time.Time, sent, received int, err error) {
	d := max(time.Since(began), 0)
	m.inFlight.Add(-1)
	m.calls.Add(1)
	if err != nil {
		m.failures.Add(1)
	}
	m.bytesUp.Add(uint64(sent))
	m.bytesIn.Add(uint64(received))
	us := uint64(d.Microseconds())
	m.microseconds.Add(us)
	m.buckets[min(bits.Len64(us), numBuckets-1)].Add(1)
}

// failed counts a call that was not answered.
func (m *methodStats) failed() {
	m.inFlight.Add(-1)
	m.calls.Add(1)
	m.failures.Add(1)
}

// stats are the counters of an agent.
type stats struct {
	mu      sync.RWMutex
	served  map[string]*methodStats
	called  map[outKey]*methodStats
	started time.Time
}

type outKey struct{ method, peer string }

func (s *stats) init() {
	s.served, s.called = map[string]*methodStats{}, map[outKey]*methodStats{}
	s.started = time.Now()
}

// in returns the counters of a method that is served.
func (s *stats) in(method, types string) *methodStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.served[method]
	if m == nil {
		m = &methodStats{method: method, types: types}
		s.served[method] = m
	}
	return m
}

// out returns the counters of a method at a peer, and counts a call that begins.
func (s *stats) out(p *Peer, mi *methodInfo) *methodStats {
	key := outKey{mi.name, p.name}
	s.mu.RLock()
	m := s.called[key]
	s.mu.RUnlock()
	if m == nil {
		s.mu.Lock()
		if m = s.called[key]; m == nil {
			m = &methodStats{method: mi.name, types: mi.text, peer: p.name}
			s.called[key] = m
		}
		s.mu.Unlock()
	}
	m.inFlight.Add(1)
	return m
}

// MethodStats are the counters of a method that an agent calls at one peer, or serves.
type MethodStats struct {
	Method, Types string
	Peer          string // empty for a method that is served
	InFlight      int
	Calls         uint64 // that have ended, the failures among them
	Failures      uint64
	Sent          uint64 // bytes
	Received      uint64 // bytes
	Mean          time.Duration
	// P50 and P99 are upper bounds of the latencies of half and of 99 of 100 calls,
	// to a factor of two.
	P50, P99 time.Duration
}

// Stats are an agent's counters at a moment.
type Stats struct {
	Since          time.Time
	Called, Served []MethodStats // by method and peer
}

// Stats returns the agent's counters. The methods of this module are among them.
func (a *Agent) Stats() Stats {
	s := &a.stats
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := Stats{Since: s.started}
	for _, m := range s.called {
		out.Called = append(out.Called, m.snapshot())
	}
	for _, m := range s.served {
		out.Served = append(out.Served, m.snapshot())
	}
	for _, list := range [][]MethodStats{out.Called, out.Served} {
		slices.SortFunc(list, func(a, b MethodStats) int {
			if c := strings.Compare(a.Method, b.Method); c != 0 {
				return c
			}
			return strings.Compare(a.Peer, b.Peer)
		})
	}
	return out
}

func (m *methodStats) snapshot() MethodStats {
	out := MethodStats{Method: m.method, Types: m.types, Peer: m.peer, InFlight: int(m.inFlight.Load()),
		Calls: m.calls.Load(), Failures: m.failures.Load(), Sent: m.bytesUp.Load(), Received: m.bytesIn.Load()}
	var counts [numBuckets]uint64
	total := uint64(0)
	for i := range counts {
		counts[i] = m.buckets[i].Load()
		total += counts[i]
	}
	if total > 0 {
		out.Mean = time.Duration(m.microseconds.Load()/total) * time.Microsecond
		out.P50, out.P99 = quantile(counts[:], total/2), quantile(counts[:], total-total/100-1)
	}
	return out
}

// quantile returns the upper bound of the bucket in which the call of a number is.
func quantile(counts []uint64, at uint64) time.Duration {
	sum := uint64(0)
	for i, n := range counts {
		if sum += n; sum > at {
			return time.Duration(uint64(1)<<i) * time.Microsecond
		}
	}
	return 0
}
