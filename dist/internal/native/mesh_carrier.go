// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Carrier moves the data of a [Mesh] in place of connections between its ranks: a
// communicator of an MPI is one. The star of the mesh stays what it is: it has the
// heartbeats, the news of deaths, and the settlement of mismatches.
//
// Collective and Agree are called by one goroutine at a time, Send by one for each peer and
// channel, and likewise Recv; all may run at once. A call whose stop is over returns
// [ErrStopped] soon, whatever the others do.
type Carrier interface {
	// Moves reports whether the carrier has a collective for a call. Every rank decides
	// alike. What it does not have is done by a plan, over Send and Recv.
	Moves(c *operation.Call) bool
	// Collective compares a number with those of all ranks, and moves the data of a call.
	// same says that the numbers are equal. If they are not, the data is not valid.
	Collective(s *Stop, c *operation.Call, number CallNumber, in, out []byte) (same bool, err error)
	// Agree is the comparison alone. It returns when all ranks have called it.
	Agree(s *Stop, number CallNumber) (same bool, err error)
	// Send returns when data may be changed again.
	Send(s *Stop, to int, ch Channel, data []byte) error
	// Recv receives exactly len(data) bytes.
	Recv(s *Stop, from int, ch Channel, data []byte) error
	// Probe returns a rank from which a message has begun to come on a channel.
	Probe(ch Channel) (from int, ok bool, err error)
	// String names the carrier in errors.
	String() string
	// Close gives the carrier back. well says that the group has not failed.
	Close(well bool) error
}

// Channel keeps apart what two ranks send to each other. Within a channel data arrives in
// order.
type Channel int

// The channels: of pieces of plans and of messages, and in both the call that comes before
// the data.
const (
	PieceHeads Channel = iota + 1
	Pieces
	MessageHeads
	Messages
)

// CallNumber stands for a call: calls that match have equal numbers. Kind is the number
// without the call's place in the order of calls.
type CallNumber struct{ Whole, Kind uint64 }

// numberOf returns the number of a call.
func numberOf(c *operation.Call) CallNumber {
	h := uint64(14695981039346656037)
	count := uint64(0)
	if c.CountsAgree() {
		count = uint64(c.Count)
	}
	for _, v := range [...]uint64{uint64(c.Op), uint64(c.Reduce.Kind()), uint64(c.DType), uint64(c.Root), c.Layout, count} {
		h = mix(h ^ v)
	}
	return CallNumber{Whole: mix(h ^ c.Seq), Kind: h}
}

// mix spreads the bits of a number (the finalizer of SplitMix64).
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// ErrStopped is the error of a wait on a carrier that the mesh has ended.
var ErrStopped = errors.New("the wait has been ended")

// Stop says when a wait on a carrier ends: with the first fault of the group, the end of the
// call's context or of its time.
type Stop struct {
	fault <-chan struct{}
	late  chan struct{}
	over  atomic.Bool
}

// Over reports whether the wait is to end.
func (s *Stop) Over() bool {
	if s.over.Load() {
		return true
	}
	select {
	case <-s.fault:
		return true
	default:
		return false
	}
}

// lookPeriod is how often Await looks.
const lookPeriod = 5 * time.Millisecond

// Await waits for done, and reports whether it came before the stop. It calls look now and
// then, which also ends the wait when it returns true.
func (s *Stop) Await(done <-chan struct{}, look func() (over bool)) bool {
	timer := time.NewTimer(lookPeriod)
	defer timer.Stop()
	for over := false; !over; {
		select {
		case <-done:
			return true
		case <-s.fault:
			over = true
		case <-s.late:
			over = true
		case <-timer.C:
			over = look()
			timer.Reset(lookPeriod)
		}
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// NewStop returns a stop that is over when ctx has ended.
func NewStop(ctx context.Context) *Stop {
	return &Stop{fault: ctx.Done(), late: make(chan struct{}, 1)}
}

// end ends the wait.
func (s *Stop) end() {
	s.over.Store(true)
	select {
	case s.late <- struct{}{}:
	default:
	}
}

// renew makes the stop of an ended call one of another call.
func (s *Stop) renew() {
	s.over.Store(false)
	select {
	case <-s.late:
	default:
	}
}

// stopOf returns the stop of a call that the watchdog looks after.
func (m *Mesh) stopOf(w *watched) *Stop {
	if w.stop == nil {
		w.dog.mu.Lock()
		w.stop = &Stop{fault: m.whole.Done(), late: make(chan struct{}, 1)}
		if w.cut {
			w.stop.end()
		}
		w.dog.mu.Unlock()
	}
	return w.stop
}

// goneFromCarrier returns the ranks that have left; none where connections tell that.
func (m *Mesh) goneFromCarrier() map[int]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.carrier == nil || len(m.left) == 0 {
		return nil
	}
	return maps.Clone(m.left)
}

// carry runs a collective over the carrier, by a plan where the carrier does not have it.
func (m *Mesh) carry(ctx context.Context, c *operation.Call, in, out collective.Data) error {
	w := m.watch.begin(ctx, c, true)
	if err := m.anyDeserted(c); err != nil {
		m.watch.end(w)
		return err
	}
	s, number := m.stopOf(w), numberOf(c)
	own := m.carrier.Moves(c) && !(c.Op.Reduces() && m.cfg.Options.Deterministic)
	var same bool
	var err error
	if own && !c.Empty() {
		same, err = m.carrier.Collective(s, c, number, in.Bytes(), out.Bytes())
	} else {
		same, err = m.carrier.Agree(s, number)
	}
	m.watch.end(w)
	switch {
	case err != nil:
		return m.carrierError(ctx, c, err)
	case !same:
		return m.differing(c)
	case own || c.Empty():
		return nil
	}
	return m.exec.execute(ctx, m, &m.cfg, c, in.Bytes(), out.Bytes())
}

// differing returns the error of a call that is not the same on all ranks: the ranks tell
// each other their calls.
func (m *Mesh) differing(c *operation.Call) error {
	m.star.tellStalled(m.cfg.Rank, c)
	select {
	case <-m.whole.Done():
	case <-time.After(newsPatience):
	}
	m.mu.Lock()
	failed := m.fault
	m.mu.Unlock()
	if failed != nil {
		return m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
	}
	return m.cfg.faultError(c, m.cfg.Rank, kindFailed, "its call differs from that of another rank")
}

// carrierError returns the error of a collective from the error of the carrier.
func (m *Mesh) carrierError(ctx context.Context, c *operation.Call, err error) error {
	m.mu.Lock()
	failed := m.fault
	m.mu.Unlock()
	if failed == nil && !errors.Is(err, ErrStopped) {
		// The calls may differ, or a rank has died: the others know by the star.
		m.star.tellStalled(m.cfg.Rank, c)
		select {
		case <-m.whole.Done():
		case <-time.After(newsPatience):
		}
		m.mu.Lock()
		failed = m.fault
		m.mu.Unlock()
	}
	switch {
	case failed != nil:
		return m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
	case errors.Is(err, ErrStopped):
		return m.late(ctx, c, m.missingFrom(c)...)
	}
	return m.cfg.faultError(c, m.cfg.Rank, kindFailed, err.Error())
}

// missingFrom returns the ranks that have not called a collective, as they tell themselves;
// all others where nobody is known to be missing.
func (m *Mesh) missingFrom(c *operation.Call) []fault.Member {
	stop := make(chan struct{})
	defer time.AfterFunc(newsPatience, func() { close(stop) }).Stop()
	answers := make([]chan bool, m.n)
	for r := range m.n {
		if r == m.cfg.Rank {
			continue
		}
		answers[r] = make(chan bool, 1)
		go func() {
			d := m.star.ask(r, stop)
			answers[r] <- d.State == fault.DoingUnknown || d.Called < c.Seq
		}()
	}
	var missing []fault.Member
	for r, answer := range answers {
		if answer != nil && <-answer {
			missing = append(missing, m.cfg.Members[r])
		}
	}
	if missing == nil {
		return m.others()
	}
	return missing
}

// sendFramed sends a frame over the carrier: the call, then data.
func (m *Mesh) sendFramed(s *Stop, c *operation.Call, to int, heads, body Channel, data []byte) error {
	head := appendCall(make([]byte, 0, callSize), c)
	err := m.carrier.Send(s, to, heads, head)
	if err == nil && len(data) > 0 {
		err = m.carrier.Send(s, to, body, data)
	}
	if err == nil {
		m.given.Add(int64(len(data)))
	}
	return err
}

// recvFramed receives a frame of len(data) bytes over the carrier. The error is one of the
// carrier, or says that the frame does not fit.
func (m *Mesh) recvFramed(s *Stop, c *operation.Call, from int, heads, body Channel, matches func(*operation.Call) bool, data []byte) error {
	head := make([]byte, callSize)
	if err := m.carrier.Recv(s, from, heads, head); err != nil {
		return err
	}
	there, err := parseCall(head)
	switch {
	case err != nil:
		return &protocolError{err}
	case !matches(&there):
		return m.mismatch(c, from, there)
	}
	if want, own := c.Wants(from); own && there.Count != want {
		return parcelError(m.mismatch(c, from, there), there.Count, want)
	}
	if len(data) == 0 {
		return nil
	}
	return m.carrier.Recv(s, from, body, data)
}

// framedError returns the error of a call from that of a frame.
func (m *Mesh) framedError(ctx context.Context, c *operation.Call, peer, missing int, err error) error {
	var mismatch *fault.MismatchError
	var protocol *protocolError
	m.mu.Lock()
	failed, left := m.fault, m.left[peer]
	m.mu.Unlock()
	switch {
	case err == nil || errors.As(err, &mismatch):
		return err
	case errors.As(err, &protocol):
		return m.cfg.faultError(c, peer, kindFailed, err.Error())
	case failed != nil:
		return m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
	case errors.Is(err, ErrStopped) && left && ctx.Err() == nil:
		return m.cfg.faultError(c, peer, kindLeft, "")
	case errors.Is(err, ErrStopped):
		return m.late(ctx, c, m.cfg.Members[missing])
	}
	return m.explain(c, peer, err)
}

// sendCarried and recvCarried are a message over the carrier.
func (m *Mesh) sendCarried(ctx context.Context, c *operation.Call, data []byte) error {
	w := m.watch.begin(ctx, c, false)
	defer m.watch.end(w)
	return m.framedError(ctx, c, c.Root, c.Root, m.sendFramed(m.stopOf(w), c, c.Root, MessageHeads, Messages, data))
}

func (m *Mesh) recvCarried(ctx context.Context, c *operation.Call, data []byte, matches func(*operation.Call) bool) error {
	w := m.watch.begin(ctx, c, false)
	defer m.watch.end(w)
	return m.framedError(ctx, c, c.Root, c.Root, m.recvFramed(m.stopOf(w), c, c.Root, MessageHeads, Messages, matches, data))
}

// awaitCarried returns a rank whose message has begun to come over the carrier.
func (m *Mesh) awaitCarried(ctx context.Context, c *operation.Call) (int, error) {
	limit := time.NewTimer(m.cfg.Timeout - time.Since(c.Start()))
	defer limit.Stop()
	var gone time.Time // since when all others have left
	for pause := time.Microsecond; ; pause = min(2*pause, anyPause) {
		m.mu.Lock()
		failed, numLeft := m.fault, len(m.left)
		m.mu.Unlock()
		from, found, err := m.carrier.Probe(MessageHeads)
		switch {
		case err != nil:
			return 0, m.carrierError(ctx, c, err)
		case found:
			return from, nil
		case failed != nil:
			return 0, m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
		case numLeft == m.n-1 && gone.IsZero():
			gone = time.Now()
		case numLeft == m.n-1 && time.Since(gone) > newsPatience:
			return 0, m.cfg.faultError(c, m.others()[0].Rank, kindLeft, "")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, m.late(ctx, c, m.others()...)
		case <-limit.C:
			return 0, m.late(ctx, c, m.others()...)
		}
	}
}
