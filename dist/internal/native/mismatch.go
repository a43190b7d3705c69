// SPDX-License-Identifier: Apache-2.0

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

// maxSite is the most bytes of a call site that travel between ranks.
const maxSite = 256

// siteText returns a call site that another rank's error may print: one printable line. Of a
// long site it keeps the end, which has the file and the line.
func siteText(site string) string {
	site = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, site)
	if len(site) <= maxSite {
		return site
	}
	const dots = "..."
	from := len(site) - maxSite + len(dots)
	for !utf8.RuneStart(site[from]) {
		from++
	}
	return dots + site[from:]
}

// mismatch is two calls that do not fit, and whether the two ranks have told where they made
// them.
type mismatch struct {
	calls [2]fault.RankCall
	said  [2]bool // the rank has answered, also if it knows nothing
	// differs says that the calls fit except for a number of elements: what the second rank
	// has for the first, which wants another number.
	differs    bool
	have, want int
}

// newMismatch returns the mismatch of an error. A line that the error does not know has not
// been said.
func newMismatch(e *fault.MismatchError) *mismatch {
	m := &mismatch{calls: [2]fault.RankCall{e.Here, e.There}}
	if p := e.Parcel; p != nil {
		if p.To == e.There.Rank {
			m.calls[0], m.calls[1] = m.calls[1], m.calls[0]
		}
		m.differs, m.have, m.want = true, p.Have, p.Want
	}
	for i := range m.calls {
		rc := &m.calls[i]
		rc.Call.Parts, rc.Call.Recvs = slices.Clone(rc.Call.Parts), nil
		rc.Site, rc.Group = siteText(rc.Site), nameText(rc.Group)
		m.said[i] = rc.Site != ""
	}
	return m
}

// complete reports whether both ranks have answered.
func (m *mismatch) complete() bool { return m.said[0] && m.said[1] }

// giveUp ends the wait for answers: what has not been told is not known.
func (m *mismatch) giveUp() { m.said = [2]bool{true, true} }

// say notes where a rank made its call, if the rank is one of the two and has not told it yet.
// It reports whether that is so. past returns this rank's collective of a number, if the
// history has it.
func (m *mismatch) say(rank int, site func(operation.Call) string, past func(seq uint64) (operation.Call, bool)) bool {
	news := false
	for i := range m.calls {
		mine, other := &m.calls[i], &m.calls[1-i]
		if mine.Rank != rank || m.said[i] {
			continue
		}
		m.said[i], news = true, true
		if !isMessage(&mine.Call) && !isMessage(&other.Call) && mine.Group == "" && other.Group == "" {
			// The others have not seen the parts of this rank's call. And a rank that finds
			// a piece of another number than it waits for cannot know what the sender did
			// at its own number.
			for _, seq := range []uint64{other.Call.Seq, mine.Call.Seq} {
				if c, ok := past(seq); ok && (!c.Matches(&other.Call) || seq == mine.Call.Seq && c.Matches(&mine.Call)) {
					mine.Call = c
					m.differs = m.differs && c.Matches(&other.Call)
					break
				}
			}
		}
		if site != nil {
			mine.Site = siteText(site(mine.Call))
		}
	}
	return news
}

func isMessage(c *operation.Call) bool {
	return c.Op == operation.Send || c.Op == operation.Recv
}

// merge takes over what a rank has told of its own call.
func (m *mismatch) merge(rank int, o *mismatch) {
	for i := range m.calls {
		for j := range o.calls {
			if m.calls[i].Rank == rank && o.calls[j].Rank == rank && o.said[j] && !m.said[i] {
				m.calls[i], m.said[i] = o.calls[j], true
				m.differs = m.differs && o.differs
			}
		}
	}
}

// error returns the error of one of the group's ranks. If its own call is one of the two, that
// call comes first.
func (m *mismatch) error(group string, rank int) *fault.MismatchError {
	e := &fault.MismatchError{Group: group, Here: m.calls[0], There: m.calls[1]}
	if m.differs {
		e.Parcel = &fault.Parcel{From: e.There.Rank, To: e.Here.Rank, Have: m.have, Want: m.want}
	}
	if e.There.Rank == rank {
		e.Here, e.There = e.There, e.Here
	}
	e.Seq = e.Here.Call.Seq
	return e
}

const (
	// rankCallSize is the length of one of two encoded calls without its parts
	// and its texts.
	rankCallSize = 4 + callSize + 1 + 2 + 2 + 1
	// maxParts is the most bytes of parts that travel. Longer parts are left out.
	maxParts    = 120
	maxMismatch = 2*(rankCallSize+maxParts+maxSite+maxTextName) + 2*8
)

var _ [0]byte = [max(0, maxMismatch-maxFaultText)]byte{} // it is the text of a fault

// encode makes the text of a fault of kindMismatch.
func (m *mismatch) encode() string {
	b := make([]byte, 0, maxMismatch)
	for i := range m.calls {
		rc := &m.calls[i]
		b = binary.LittleEndian.AppendUint32(b, uint32(rc.Rank))
		b = appendCall(b, &rc.Call)
		said := byte(0)
		if m.said[i] {
			said = 1
		}
		b = append(b, said)
		var parts []byte
		for _, n := range rc.Call.Parts {
			parts = binary.AppendUvarint(parts, uint64(n))
		}
		if len(parts) > maxParts {
			parts = nil
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(len(parts)))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(rc.Site)))
		b = append(b, byte(len(rc.Group)))
		b = append(append(append(b, parts...), rc.Site...), rc.Group...)
	}
	if m.differs {
		b = binary.LittleEndian.AppendUint64(b, uint64(m.have))
		b = binary.LittleEndian.AppendUint64(b, uint64(m.want))
	}
	return string(b)
}

// parseMismatch reads what encode wrote.
func parseMismatch(text string, numRanks int) (*mismatch, error) {
	m := &mismatch{}
	rest := []byte(text)
	for i := range m.calls {
		if len(rest) < rankCallSize {
			return nil, fmt.Errorf("a mismatch of %d bytes", len(text))
		}
		rc := &m.calls[i]
		rc.Rank = int(binary.LittleEndian.Uint32(rest))
		if rc.Rank >= numRanks {
			return nil, fmt.Errorf("a mismatch of rank %d of %d", rc.Rank, numRanks)
		}
		var err error
		if rc.Call, err = parseCall(rest[4:][:callSize]); err != nil {
			return nil, err
		}
		said := rest[4+callSize]
		ofParts, n := int(binary.LittleEndian.Uint16(rest[4+callSize+1:])), int(binary.LittleEndian.Uint16(rest[4+callSize+3:]))
		ofName := int(rest[4+callSize+5])
		rest = rest[rankCallSize:]
		if said > 1 || ofParts > maxParts || n > maxSite || ofName > maxTextName || ofParts+n+ofName > len(rest) || n > 0 && said == 0 {
			return nil, fmt.Errorf("a mismatch with parts of %d bytes and a site of %d", ofParts, n)
		}
		if rc.Call.Parts, err = parseParts(rest[:ofParts], numRanks); err != nil {
			return nil, err
		}
		rest = rest[ofParts:]
		m.said[i], rc.Site = said == 1, string(rest[:n])
		rc.Group = string(rest[n:][:ofName])
		if siteText(rc.Site) != rc.Site || nameText(rc.Group) != rc.Group {
			return nil, fmt.Errorf("a mismatch with texts that no rank would send: %q %q", rc.Site, rc.Group)
		}
		rest = rest[n+ofName:]
	}
	if len(rest) == 2*8 {
		have, want := binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])
		if have > math.MaxInt || want > math.MaxInt {
			return nil, fmt.Errorf("a mismatch of %d and %d elements", have, want)
		}
		m.differs, m.have, m.want = true, int(have), int(want)
		rest = nil
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("a mismatch of %d bytes, %d too many", len(text), len(rest))
	}
	return m, nil
}

// parseParts reads a number for each rank, or none.
func parseParts(b []byte, numRanks int) ([]int, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var parts []int
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > math.MaxInt || n > 1 && b[n-1] == 0 {
			return nil, errors.New("a mismatch with parts that cannot be read")
		}
		parts, b = append(parts, int(v)), b[n:]
	}
	if len(parts) != numRanks {
		return nil, fmt.Errorf("a mismatch with %d parts of %d ranks", len(parts), numRanks)
	}
	return parts, nil
}

// parcelError makes the mismatch one of a number of elements: what the other rank has for
// this one.
func parcelError(e *fault.MismatchError, have, want int) error {
	e.Parcel = &fault.Parcel{From: e.There.Rank, To: e.Here.Rank, Have: have, Want: want}
	return e
}
