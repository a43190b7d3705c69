// SPDX-License-Identifier: Apache-2.0

package native

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// A rank that waits in vain asks the ranks that it waits for what they are doing. The
// question goes over the star, from a spoke through the hub. The goroutine that reads the
// star's connection answers, whatever the rank's other goroutines do. A rank that leaves
// tells what it did last with its leave.
const (
	askPatience = 250 * time.Millisecond
	// maxAsked is the most missing ranks that are asked, maxAskedOfAll the largest group
	// of which all ranks are asked where it is not known which are missing.
	maxAsked      = 4
	maxAskedOfAll = 64
)

// askWhere is a bit in the number of a question. It asks where the program is too, for
// which all its goroutines stop for a moment.
const askWhere = 1 << 31

// maxStack bounds the text of a stack in an answer.
const maxStack = 3 << 10

// stackText returns a stack that another rank may print: bounded, and printable.
func stackText(stack string) string {
	stack = strings.Map(func(r rune) rune {
		if r != '\n' && (r == '�' || !unicode.IsPrint(r)) {
			return '?'
		}
		return r
	}, stack)
	return strings.ToValidUTF8(stack[:min(len(stack), maxStack)], "")
}

// asks are the questions of a rank that wait for an answer, and what ranks told when they
// left.
type asks struct {
	mu      sync.Mutex
	last    uint32 // question asked
	open    map[uint32]chan fault.Doing
	parting map[int]fault.Doing // by rank: what it did last before it left
	parted  chan struct{}       // closed and replaced when one leaves
}

func newAsks() asks {
	return asks{open: map[uint32]chan fault.Doing{}, parting: map[int]fault.Doing{}, parted: make(chan struct{})}
}

// doing returns what this rank is doing, for the rank that asks.
func (cfg *Config) doing(asker int) fault.Doing {
	if cfg.Doing == nil {
		return fault.Doing{}
	}
	return cfg.Doing(asker)
}

// ask returns what another rank is doing, or did last before it left. It is a zero Doing if
// the rank does not answer. stop, which may be nil, ends the wait.
func (s *star) ask(rank int, stop <-chan struct{}) fault.Doing { return s.askFor(rank, 0, stop) }

// askFor is ask. With askWhere as what, it also asks where the rank's program is.
func (s *star) askFor(rank int, what uint32, stop <-chan struct{}) fault.Doing {
	a := &s.asks
	a.mu.Lock()
	a.last = (a.last + 1) % askWhere
	number, answer := a.last|what, make(chan fault.Doing, 1)
	a.open[number] = answer
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.open, number)
		a.mu.Unlock()
	}()
	s.tellOne(rank, frameAsk, encodeAsk(s.rank, rank, number))
	timer := time.NewTimer(askPatience)
	defer timer.Stop()
	for {
		a.mu.Lock()
		d, has := a.parting[rank]
		parted := a.parted
		a.mu.Unlock()
		if has {
			return d
		}
		select {
		case d := <-answer:
			return d
		case <-parted:
		case <-stop:
			return fault.Doing{}
		case <-timer.C:
			return fault.Doing{}
		}
	}
}

// tellOne sends a frame to one rank: directly from the hub, through the hub from a spoke.
func (s *star) tellOne(rank int, kind byte, payload []byte) {
	if s.rank != 0 {
		rank = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[rank]; c != nil {
		_ = c.WriteFrame(kind, payload)
	}
}

// asked answers a question that came over a rank's connection, or passes it on.
func (s *star) asked(from int, payload []byte) error {
	asker, about, number, err := parseAsk(payload, s.numRanks)
	if err != nil || s.rank == 0 && asker != from {
		return fmt.Errorf("a question of rank %d: %w", asker, err)
	}
	switch {
	case about == s.rank:
		d := s.cfg.doing(asker)
		if number&askWhere != 0 && s.cfg.Where != nil {
			d.At, d.Stack = s.cfg.Where()
			d.At, d.Stack = siteText(d.At), stackText(d.Stack)
		}
		s.tellOne(asker, frameDoing, encodeDoing(asker, s.rank, number, &d))
	case s.rank == 0:
		s.tellOne(about, frameAsk, payload)
	}
	return nil
}

// answered takes the answer to a question, or passes it on.
func (s *star) answered(from int, payload []byte) error {
	asker, about, number, d, err := parseDoing(payload, s.numRanks)
	switch {
	case err != nil:
		return err
	case s.rank == 0 && about != from:
		return fmt.Errorf("rank %d answers for rank %d", from, about)
	case asker != s.rank:
		if s.rank == 0 {
			s.tellOne(asker, frameDoing, payload)
		}
		return nil
	}
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	if answer := s.asks.open[number]; answer != nil {
		select {
		case answer <- d:
		default: // there was one
		}
	}
	return nil
}

// part notes what a rank told when it left, if that can be read.
func (s *star) part(rank int, words []byte) {
	_, about, _, d, err := parseDoing(words, s.numRanks)
	if err != nil || about != rank {
		d = fault.Doing{}
	}
	s.asks.mu.Lock()
	s.asks.parting[rank] = d
	close(s.asks.parted)
	s.asks.parted = make(chan struct{})
	s.asks.mu.Unlock()
}

// partingOf returns what a rank told when it left, encoded.
func (s *star) partingOf(rank int) []byte {
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	d := s.asks.parting[rank]
	return encodeDoing(rank, rank, 0, &d)
}

// lastOf returns the number of the last collective that a rank had called on the group
// before it left. known is false if the rank did not tell.
func (s *star) lastOf(rank int) (seq uint64, known bool) {
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	d := s.asks.parting[rank]
	seq = d.Call.Seq
	if seq == 0 && d.State == fault.DoingEnded { // it has called nothing since the barrier that forms the group
		seq = 1
	}
	return seq, d.State != fault.DoingUnknown && d.Key == collective.KeyNumber(s.cfg.Key) && !isMessage(&d.Call)
}

// words returns what this rank tells when it leaves, encoded.
func (s *star) words() []byte {
	d := s.cfg.doing(s.rank)
	return encodeDoing(s.rank, s.rank, 0, &d)
}

// askMissing asks the ranks that an error names as missing or departed what they are doing,
// and adds the answers to the error.
func (cfg *Config) askMissing(err error, ask func(rank int, stop <-chan struct{}) fault.Doing) {
	switch e := err.(type) {
	case *fault.TimeoutError:
		if e.Instead == nil && len(e.Missing) > 0 && e.Timeout() {
			cfg.findMissing(e, ask)
		}
	case *fault.RankError:
		if e.Last == nil && e.Cause == fault.ErrLeft && e.Rank != cfg.Rank {
			d := ask(e.Rank, nil)
			e.Last = &d
		}
	}
}

// findMissing asks the ranks for which a call has waited. If one of them has made the same
// call, it is not missing but waits for others too: then all ranks are asked.
func (cfg *Config) findMissing(e *fault.TimeoutError, ask func(rank int, stop <-chan struct{}) fault.Doing) {
	e.Instead = cfg.askAll(e.Missing[:min(len(e.Missing), maxAsked)], ask)
	here := collective.KeyNumber(cfg.Key)
	came := func(d fault.Doing) bool {
		return d.State != fault.DoingUnknown && d.Key == here && d.Call.Seq == e.Seq && !isMessage(&d.Call) &&
			e.Op != operation.Send.String() && e.Op != operation.Recv.String()
	}
	if !slices.ContainsFunc(e.Instead, came) {
		return
	}
	all := slices.DeleteFunc(slices.Clone(cfg.Members), func(m fault.Member) bool { return m.Rank == cfg.Members[cfg.Rank].Rank })
	if len(all) > maxAskedOfAll {
		return
	}
	doing := cfg.askAll(all, ask)
	var missing []fault.Member
	var instead []fault.Doing
	for i, d := range doing {
		if !came(d) {
			missing, instead = append(missing, all[i]), append(instead, d)
		}
	}
	if len(missing) > 0 {
		e.Missing, e.Instead = missing, instead
	}
}

func (cfg *Config) askAll(members []fault.Member, ask func(rank int, stop <-chan struct{}) fault.Doing) []fault.Doing {
	doing := make([]fault.Doing, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		if m.Rank != cfg.Rank {
			all.Go(func() { doing[i] = ask(m.Rank, nil) })
		}
	}
	all.Wait()
	return doing
}

func encodeAsk(asker, about int, number uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(asker))
	b = binary.LittleEndian.AppendUint32(b, uint32(about))
	return binary.LittleEndian.AppendUint32(b, number)
}

func parseAsk(b []byte, numRanks int) (asker, about int, number uint32, err error) {
	if len(b) != 12 {
		return 0, 0, 0, fmt.Errorf("a question of %d bytes", len(b))
	}
	from, to := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if uint64(from) >= uint64(numRanks) || uint64(to) >= uint64(numRanks) {
		return 0, 0, 0, fmt.Errorf("a question of rank %d about rank %d of %d", from, to, numRanks)
	}
	return int(from), int(to), binary.LittleEndian.Uint32(b[8:]), nil
}

const (
	// maxTextName is the most bytes of a group's name in answers and mismatches.
	maxTextName = 80
	doingHead   = 12 + 2 + 8 + callSize + 8 + 8 + 3*8
)

// nameText returns a group's name that another rank's error may print: bounded, and
// printable.
func nameText(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == '�' || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
	if len(name) <= maxTextName {
		return name
	}
	const dots = "..."
	return strings.ToValidUTF8(name[:maxTextName-len(dots)], "") + dots
}

// encodeDoing makes the payload of frameDoing and frameBye: that of a question, and then
// what the rank is doing.
func encodeDoing(asker, about int, number uint32, d *fault.Doing) []byte {
	b := encodeAsk(asker, about, number)
	flags := byte(0)
	if d.Blocking {
		flags |= 1
	}
	if d.Solo {
		flags |= 2
	}
	b = append(b, byte(d.State), flags)
	b = binary.LittleEndian.AppendUint64(b, d.Key)
	b = appendCall(b, &d.Call)
	b = binary.LittleEndian.AppendUint64(b, uint64(max(0, d.For)))
	for _, n := range []uint64{d.ID, d.Called, d.Sent, d.Received} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, text := range []string{nameText(d.Group), siteText(d.Site), d.At, d.Stack} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
		b = append(b, text...)
	}
	return b
}

func parseDoing(b []byte, numRanks int) (asker, about int, number uint32, d fault.Doing, err error) {
	fail := func(format string, args ...any) (int, int, uint32, fault.Doing, error) {
		return 0, 0, 0, fault.Doing{}, fmt.Errorf("an answer "+format, args...)
	}
	if len(b) < doingHead {
		return fail("of %d bytes", len(b))
	}
	if asker, about, number, err = parseAsk(b[:12], numRanks); err != nil {
		return 0, 0, 0, d, err
	}
	d.State = fault.DoingState(b[12])
	if !d.State.Valid() || b[13] > 3 {
		return fail("of state %d, flags %d", b[12], b[13])
	}
	d.Blocking, d.Solo = b[13]&1 != 0, b[13]&2 != 0
	d.Key = binary.LittleEndian.Uint64(b[14:])
	if d.Call, err = parseCall(b[22:][:callSize]); err != nil {
		return fail("with %w", err)
	}
	took := binary.LittleEndian.Uint64(b[22+callSize:])
	if took > math.MaxInt64 {
		return fail("about a call of %d ns", took)
	}
	d.For = time.Duration(took)
	for i, n := range []*uint64{&d.ID, &d.Called, &d.Sent, &d.Received} {
		*n = binary.LittleEndian.Uint64(b[30+callSize+8*i:])
	}
	rest := b[doingHead:]
	for i, text := range []*string{&d.Group, &d.Site, &d.At, &d.Stack} {
		if len(rest) < 2 || int(binary.LittleEndian.Uint16(rest)) > len(rest)-2 {
			return fail("of %d bytes that ends in a text", len(b))
		}
		n := int(binary.LittleEndian.Uint16(rest))
		*text, rest = string(rest[2:][:n]), rest[2+n:]
		if clean := [...]func(string) string{nameText, siteText, siteText, stackText}[i]; clean(*text) != *text {
			return fail("with a text that no rank would send: %q", *text)
		}
	}
	if len(rest) != 0 {
		return fail("of %d bytes, %d too many", len(b), len(rest))
	}
	return asker, about, number, d, nil
}
