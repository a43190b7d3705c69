// SPDX-License-Identifier: Apache-2.0

package native

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
)

// Progress is how far a rank has come with the collectives of a group.
type Progress = backend.Progress

// RankSkew is how late a rank comes to the collectives of a group.
type RankSkew = backend.RankSkew

const (
	// skewSteps is the number of steps in either half of the window over which lateness is
	// measured. The better half counts, so that one slow step does not make a slow rank.
	skewSteps = 5
	// skewTime is the least length of half a window where steps are not marked, and each
	// collective counts as a step.
	skewTime = 500 * time.Millisecond
	// maxProgress bounds what is remembered of each rank.
	maxProgress = 32
	// maxTold is how many ranks, the latest ones, the hub's table has.
	maxTold   = 64
	skewEntry = 24
)

// tracker finds late ranks. A rank that comes early to a collective waits in it for the others,
// so the rank that has waited least is the latest. A rank is late by the difference between
// the longest wait and its own. The time in which the data travels is part of every wait and
// cancels out.
type tracker struct {
	past  [][]Progress // by rank, in the order of steps
	until uint64       // steps that the last table goes up to
	picks [][3]Progress
}

func newTracker(numRanks int) *tracker {
	return &tracker{past: make([][]Progress, numRanks), picks: make([][3]Progress, numRanks)}
}

// add takes what a rank reports. If its numbers go back, its past is dropped.
func (t *tracker) add(rank int, p Progress) {
	past := t.past[rank]
	if n := len(past); n > 0 {
		last := past[n-1]
		if p.Steps == last.Steps || p.Steps == p.Calls && p.At > last.At && p.At-last.At < skewTime/8 {
			return // nothing new, or so soon that the kept past would not reach back far enough
		}
		if p.Steps < last.Steps || p.Calls < last.Calls || p.Waited < last.Waited || p.At <= last.At {
			past, t.until = past[:0], 0
		}
	}
	if len(past) == maxProgress {
		copy(past, past[1:])
		past = past[:maxProgress-1]
	}
	t.past[rank] = append(past, p)
}

// table returns how late the ranks are, in the order of ranks, nil if there is no news.
func (t *tracker) table() []RankSkew {
	end := uint64(math.MaxUint64)
	for _, past := range t.past {
		if len(past) == 0 {
			return nil
		}
		end = min(end, past[len(past)-1].Steps)
	}
	if end <= t.until {
		return nil
	}
	for r, past := range t.past {
		at, ok := len(past), false
		for i := range t.picks[r] { // the end, the middle, the beginning
			if at, ok = before(past[:at], end, i, &t.picks[r]); !ok {
				return nil
			}
		}
	}
	t.until = end
	table := make([]RankSkew, len(t.past))
	for half := range 2 {
		var most float64 // nanoseconds waited a step
		for r := range t.picks {
			waited, _, _ := t.half(r, half)
			most = max(most, waited)
		}
		for r := range table {
			waited, step, calls := t.half(r, half)
			late := most - waited
			row := RankSkew{Rank: r, Late: time.Duration(late / max(calls, 1)), Share: min(late/step, 1), Step: time.Duration(step)}
			if half == 0 || row.Share < table[r].Share {
				table[r] = row
			}
		}
	}
	return table
}

// before picks the progress at the end of a window (i = 0), or the progress at the beginning of
// its i-th half, counted from the end.
func before(past []Progress, end uint64, i int, picks *[3]Progress) (at int, ok bool) {
	for at = len(past) - 1; at >= 0; at-- {
		p := past[at]
		switch {
		case i == 0:
			ok = p.Steps <= end
		case p.Steps == p.Calls: // steps are not marked
			ok = picks[i-1].Steps-p.Steps >= skewSteps && picks[i-1].At-p.At >= skewTime
		default:
			ok = picks[i-1].Steps-p.Steps >= skewSteps
		}
		if ok {
			picks[i] = p
			return at, true
		}
	}
	return 0, false
}

// half returns the average step of a rank in half a window: the nanoseconds that it waited and
// that the step took, and its number of collectives.
func (t *tracker) half(rank, half int) (waited, step, calls float64) {
	to, from := t.picks[rank][half], t.picks[rank][half+1]
	n := float64(to.Steps - from.Steps)
	return float64(to.Waited-from.Waited) / n, float64(to.At-from.At) / n, float64(to.Calls-from.Calls) / n
}

// encodeProgress makes the payload of frameBeat.
func encodeProgress(to []byte, p Progress) []byte {
	to = binary.LittleEndian.AppendUint64(to, p.Steps)
	to = binary.LittleEndian.AppendUint64(to, p.Calls)
	to = binary.LittleEndian.AppendUint64(to, uint64(p.Waited))
	return binary.LittleEndian.AppendUint64(to, uint64(p.At))
}

func parseProgress(b []byte) (Progress, error) {
	if len(b) != beatSize {
		return Progress{}, fmt.Errorf("a beat of %d bytes", len(b))
	}
	p := Progress{Steps: binary.LittleEndian.Uint64(b), Calls: binary.LittleEndian.Uint64(b[8:]),
		Waited: time.Duration(binary.LittleEndian.Uint64(b[16:])), At: time.Duration(binary.LittleEndian.Uint64(b[24:]))}
	if p.Waited < 0 || p.At < 0 {
		return Progress{}, fmt.Errorf("a beat that reports a wait of %d ns at %d ns", p.Waited, p.At)
	}
	return p, nil
}

// encodeSkew makes the payload of frameSkew: the latest ranks of a table.
func encodeSkew(to []byte, table []RankSkew) []byte {
	if len(table) > maxTold {
		table = slices.Clone(table)
		slices.SortStableFunc(table, func(a, b RankSkew) int { return cmp.Compare(b.Share, a.Share) })
		table = table[:maxTold]
	}
	for _, s := range table {
		to = binary.LittleEndian.AppendUint32(to, uint32(s.Rank))
		to = binary.LittleEndian.AppendUint32(to, math.Float32bits(float32(s.Share)))
		to = binary.LittleEndian.AppendUint64(to, uint64(s.Late))
		to = binary.LittleEndian.AppendUint64(to, uint64(s.Step))
	}
	return to
}

// parseSkew reads what encodeSkew wrote, in the order of ranks.
func parseSkew(b []byte, numRanks int) ([]RankSkew, error) {
	if len(b)%skewEntry != 0 || len(b) > maxTold*skewEntry {
		return nil, fmt.Errorf("a table of late ranks of %d bytes", len(b))
	}
	table := make([]RankSkew, 0, len(b)/skewEntry)
	for ; len(b) > 0; b = b[skewEntry:] {
		rank := binary.LittleEndian.Uint32(b)
		s := RankSkew{Rank: int(rank), Late: time.Duration(binary.LittleEndian.Uint64(b[8:])), Share: float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4:]))),
			Step: time.Duration(binary.LittleEndian.Uint64(b[16:]))}
		if uint64(rank) >= uint64(numRanks) || s.Late < 0 || s.Step < 0 || !(s.Share >= 0 && s.Share <= 1) {
			return nil, fmt.Errorf("rank %d of %d is late by %v, %v of the time", rank, numRanks, s.Late, s.Share)
		}
		table = append(table, s)
	}
	slices.SortFunc(table, func(a, b RankSkew) int { return cmp.Compare(a.Rank, b.Rank) })
	return table, nil
}

// board is where ranks that are goroutines of one process show how far they have come.
type board struct {
	mu     sync.Mutex
	track  *tracker
	looked time.Time
	table  []RankSkew
}

// note takes a rank's progress, and now and then finds the late ranks.
func (b *board) note(rank int, report func() Progress) {
	if report == nil {
		return
	}
	p := report()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.track.add(rank, p)
	if now := time.Now(); now.Sub(b.looked) >= nudgeGap {
		b.looked = now
		if table := b.track.table(); table != nil {
			b.table = table
		}
	}
}

func (b *board) latest() []RankSkew {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.table
}
