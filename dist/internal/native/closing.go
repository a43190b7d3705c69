// SPDX-License-Identifier: Apache-2.0

package native

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Some collectives end on a rank that has not seen the calls of all others: two ranks that
// both take themselves for the root of a broadcast both send, and are done. The next
// collective between the two shows the mismatch, but after the last one there is none. So
// a rank that closes the group after such a call first tells the hub of the star its last
// calls. The hub tells them to all ranks. Each rank compares them with its own as soon as
// it has come as far, and answers if they fit. When all ranks have answered, the hub lets
// the rank leave.
const (
	// confirmPatience is how long a rank that leaves waits for ranks that have not come as
	// far.
	confirmPatience = 250 * time.Millisecond
	// maxInquiries is the most inquiries of a group for each of its ranks. A rank asks
	// once, when it leaves.
	maxInquiries = 2
)

// inquiry is which ranks are known to have made the calls up to a number.
type inquiry struct {
	came    []bool // by rank
	missing int
	asking  []int // spokes that wait to leave
	done    chan struct{}
}

// inquiries are those of a star. A spoke has only the channel of its own.
type inquiries struct {
	mu   sync.Mutex
	of   map[uint64]*inquiry // at the hub: by number
	done chan struct{}       // at a spoke: closed when all have made its calls, or nobody can tell
	over bool                // it is closed
}

func newInquiries() inquiries {
	return inquiries{of: map[uint64]*inquiry{}, done: make(chan struct{})}
}

// confirm asks whether all ranks have made this one's last calls. The channel is closed
// when they have, or when no rank can tell.
func (s *star) confirm(calls []operation.Call) <-chan struct{} {
	if s.rank == 0 {
		return s.inquire(0, calls)
	}
	if !s.hasHub() {
		s.confirmed()
	}
	s.tellOne(0, frameCheck, encodeCheck(s.rank, calls))
	return s.inquiries.done
}

// confirmed ends the wait of a spoke that leaves.
func (s *star) confirmed() {
	s.inquiries.mu.Lock()
	defer s.inquiries.mu.Unlock()
	if !s.inquiries.over {
		s.inquiries.over = true
		close(s.inquiries.done)
	}
}

// inquire has the hub ask all ranks about the last calls of one.
func (s *star) inquire(from int, calls []operation.Call) <-chan struct{} {
	seq := calls[len(calls)-1].Seq
	q := &s.inquiries
	q.mu.Lock()
	a := q.of[seq]
	first := a == nil
	if first {
		a = &inquiry{came: make([]bool, s.numRanks), missing: s.numRanks, done: make(chan struct{})}
		if len(q.of) < maxInquiries*s.numRanks {
			q.of[seq] = a
		}
		s.mu.Lock()
		for r := 1; r < s.numRanks; r++ {
			if s.conns[r] == nil { // it has left
				a.came[r] = true
				a.missing--
			}
		}
		s.mu.Unlock()
	}
	if from != 0 {
		a.asking = append(a.asking, from)
	}
	q.mu.Unlock()
	if first {
		s.tell(from, frameCheck, encodeCheck(from, calls))
	}
	s.came(from, seq)
	return a.done
}

// came notes at the hub that a rank's calls up to a number fit.
func (s *star) came(rank int, seq uint64) {
	q := &s.inquiries
	q.mu.Lock()
	defer q.mu.Unlock()
	for number, a := range q.of {
		if number > seq {
			continue
		}
		if !a.came[rank] {
			a.came[rank] = true
			if a.missing--; a.missing == 0 {
				close(a.done)
			}
		}
		if a.missing == 0 {
			for _, r := range a.asking {
				s.tellOne(r, frameChecked, encodeChecked(r, number))
			}
			a.asking = nil
		}
	}
}

// fits tells that this rank has made the calls that another one has asked about.
func (s *star) fits(seq uint64) {
	if s.rank == 0 {
		s.came(0, seq)
	} else {
		s.tellOne(0, frameChecked, encodeChecked(s.rank, seq))
	}
}

// check takes the last calls of a rank that leaves.
func (s *star) check(from int, payload []byte) error {
	rank, calls, err := parseCheck(payload, s.numRanks)
	switch {
	case err != nil:
		return err
	case s.rank == 0 && rank != from:
		return fmt.Errorf("it sent the calls of rank %d", rank)
	case s.compare == nil:
		return nil
	}
	fits := s.compare(rank, calls)
	if s.rank == 0 {
		s.inquire(rank, calls)
	}
	if fits {
		s.fits(calls[len(calls)-1].Seq)
	}
	return nil
}

// checked takes the answer that a rank's calls fit; at a spoke, that all ranks' do.
func (s *star) checked(from int, payload []byte) error {
	rank, seq, err := parseChecked(payload, s.numRanks)
	switch {
	case err != nil:
		return err
	case s.rank != 0:
		s.confirmed()
	case rank != from:
		return fmt.Errorf("it sent the calls of rank %d", rank)
	default:
		s.came(rank, seq)
	}
	return nil
}

// encodeCheck makes the payload of frameCheck: a rank and its last calls.
func encodeCheck(rank int, calls []operation.Call) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(rank))
	for i := range calls {
		b = appendCall(b, &calls[i])
	}
	return b
}

func parseCheck(b []byte, numRanks int) (rank int, calls []operation.Call, err error) {
	if n := len(b) - 4; n < callSize || n > pastCalls*callSize || n%callSize != 0 {
		return 0, nil, fmt.Errorf("last calls of %d bytes", len(b))
	}
	r := binary.LittleEndian.Uint32(b)
	if uint64(r) >= uint64(numRanks) {
		return 0, nil, fmt.Errorf("last calls of rank %d of %d", r, numRanks)
	}
	for b = b[4:]; len(b) > 0; b = b[callSize:] {
		c, err := parseCall(b[:callSize])
		if err != nil {
			return 0, nil, err
		}
		if n := len(calls); c.Seq == 0 || n > 0 && c.Seq <= calls[n-1].Seq {
			return 0, nil, fmt.Errorf("last calls out of order: one has number %d", c.Seq)
		}
		calls = append(calls, c)
	}
	return int(r), calls, nil
}

// encodeChecked makes the payload of frameChecked: a rank, and the number up to
// which calls fit.
func encodeChecked(rank int, seq uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, uint32(rank)), seq)
}

func parseChecked(b []byte, numRanks int) (rank int, seq uint64, err error) {
	if len(b) != 12 {
		return 0, 0, fmt.Errorf("an answer about last calls of %d bytes", len(b))
	}
	r := binary.LittleEndian.Uint32(b)
	if uint64(r) >= uint64(numRanks) {
		return 0, 0, fmt.Errorf("an answer about last calls of rank %d of %d", r, numRanks)
	}
	return int(r), binary.LittleEndian.Uint64(b[4:]), nil
}
