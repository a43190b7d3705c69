// SPDX-License-Identifier: Apache-2.0

package native

import (
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

// pastCalls is how many collectives a rank remembers.
const pastCalls = 16

// history is the last collectives of a rank, and one in which another rank waits.
type history struct {
	mu    sync.Mutex
	calls [pastCalls]operation.Call // by number, modulo
	parts [pastCalls][2][]int       // likewise: memory for their parts
	there fault.RankCall            // with number 0: none
	last  uint64                    // number of the last one
	asked []askedCalls              // what ranks that want to leave have called
}

// add adds a call that begins. It returns an error if another rank has told of a different
// call with this number. fit is the number up to which calls fit that another rank has asked
// about, 0 if no rank has.
func (h *history) add(cfg *Config, c *operation.Call) (fit uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(c)
	if len(h.asked) > 0 {
		if fit, err = h.catchUp(cfg); err != nil {
			return 0, err
		}
	}
	return fit, h.compare(cfg, c.Seq)
}

// keep adds a call to the history, which is locked. It copies the call's parts.
func (h *history) keep(c *operation.Call) {
	i := c.Seq % pastCalls
	h.calls[i], h.last = *c, c.Seq
	for j, list := range []*[]int{&h.calls[i].Parts, &h.calls[i].Recvs} {
		if *list != nil {
			h.parts[i][j] = append(h.parts[i][j][:0], *list...)
			*list = h.parts[i][j]
		}
	}
}

// note adds a call of which the other ranks do not see everything.
func (h *history) note(c *operation.Call) {
	h.mu.Lock()
	h.keep(c)
	h.mu.Unlock()
}

// heard compares the call in which another rank waits with this rank's call of the same
// number, now or when this rank comes to it.
func (h *history) heard(cfg *Config, rank int, c *operation.Call) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.there = fault.RankCall{Rank: rank, Call: *c}
	return h.compare(cfg, c.Seq)
}

// call returns the collective of a number, if it is remembered.
func (h *history) call(seq uint64) (operation.Call, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.calls[seq%pastCalls]
	c.Parts, c.Recvs = slices.Clone(c.Parts), slices.Clone(c.Recvs)
	return c, c.Seq == seq && seq > 0
}

func (h *history) compare(cfg *Config, seq uint64) error {
	mine := &h.calls[seq%pastCalls]
	if mine.Seq != seq || h.there.Call.Seq != seq {
		return nil
	}
	if mine.Matches(&h.there.Call) {
		if wants := h.there.Call.Recvs; cfg.Rank < len(wants) && wants[cfg.Rank] >= 0 {
			return h.parcel(cfg, mine, wants[cfg.Rank])
		}
		return nil
	}
	return &fault.MismatchError{Group: cfg.Group, Seq: seq, Here: fault.RankCall{Rank: cfg.Rank, Call: *mine}, There: h.there}
}

// parcel returns an error if this rank has not as much for another one as that rank waits
// for. Of a part that its sender takes for empty nothing comes at all.
func (h *history) parcel(cfg *Config, mine *operation.Call, want int) error {
	have := mine.HasFor(h.there.Rank)
	if have == want {
		return nil
	}
	there := h.there
	there.Call.Recvs = nil
	return &fault.MismatchError{Group: cfg.Group, Seq: mine.Seq, Here: fault.RankCall{Rank: cfg.Rank, Call: *mine}, There: there,
		Parcel: &fault.Parcel{From: cfg.Rank, To: there.Rank, Have: have, Want: want}}
}

// wants adds to a call in which this rank waits what it expects from each rank, where the
// others do not know it.
func (h *history) wants(rank, numRanks int, c *operation.Call) {
	mine, ok := h.call(c.Seq)
	c.Recvs = nil
	if !ok || c.Op == operation.Gather && c.Root != rank || c.Op == operation.Scatter && c.Root == rank {
		return
	}
	var all []int
	for from := range numRanks {
		n, own := mine.Wants(from)
		switch {
		case !own:
			return
		case from == rank, c.Op == operation.Scatter && from != c.Root:
			n = -1
		}
		all = append(all, n)
	}
	c.Recvs = all
}

// unconfirmed returns the last calls of this rank, the oldest first, if it cannot know that
// all ranks have made the last one.
func (h *history) unconfirmed() []operation.Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := &h.calls[h.last%pastCalls]
	if h.last == 0 || last.Seq != h.last || !last.Op.Rooted() && last.Parts == nil {
		return nil
	}
	var calls []operation.Call
	for i := uint64(1); i <= pastCalls; i++ {
		if c := h.calls[(h.last+i)%pastCalls]; c.Seq != 0 {
			c.Parts, c.Recvs = nil, nil
			calls = append(calls, c)
		}
	}
	return calls
}

// checks compares another rank's last calls with this one's, now or when this rank has come
// as far. fits says that it has come as far and that they fit.
func (h *history) checks(cfg *Config, rank int, calls []operation.Call) (fits bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq := calls[len(calls)-1].Seq
	if err := h.differ(cfg, rank, calls); err != nil {
		return false, err
	}
	if seq <= h.last {
		return true, nil
	}
	if len(h.asked) < maxInquiries*len(cfg.Members) {
		h.asked = append(h.asked, askedCalls{rank, calls})
	}
	return false, nil
}

// askedCalls are another rank's calls that this one has not all made yet.
type askedCalls struct {
	rank  int
	calls []operation.Call
}

// catchUp compares the calls that others have asked about with the call that begins. It
// returns the number up to which they now fit, 0 if no rank waits for that. The history is
// locked.
func (h *history) catchUp(cfg *Config) (fit uint64, err error) {
	for _, a := range h.asked {
		if err := h.differ(cfg, a.rank, a.calls); err != nil {
			return 0, err
		}
		if seq := a.calls[len(a.calls)-1].Seq; seq <= h.last {
			fit = max(fit, seq)
		}
	}
	h.asked = slices.DeleteFunc(h.asked, func(a askedCalls) bool { return a.calls[len(a.calls)-1].Seq <= h.last })
	return fit, nil
}

// differ returns an error if a rank's calls and this one's of the same numbers
// do not fit. The history is locked.
func (h *history) differ(cfg *Config, rank int, calls []operation.Call) error {
	for i := range calls {
		mine := &h.calls[calls[i].Seq%pastCalls]
		if mine.Seq == calls[i].Seq && !mine.Matches(&calls[i]) {
			return &fault.MismatchError{Group: cfg.Group, Seq: mine.Seq,
				Here: fault.RankCall{Rank: cfg.Rank, Call: *mine}, There: fault.RankCall{Rank: rank, Call: calls[i]}}
		}
	}
	return nil
}
