// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
)

// segmentRows is the number of places of a segment, which is written at once.
const segmentRows = 256

// segments are the places of rows in a file. Rows that leave the memory are written one
// behind the other into a free segment, for many small writes cost more than one. Rows
// that come back leave gaps. When less than about half of the places are in use, the
// rows of segments with few of them are put together (the way of log-structured files).
type segments struct {
	file    *os.File
	size    int      // bytes of a row
	holders []uint32 // of a place: the slot of the row's header plus one, 0 for a gap
	live    []int32  // rows of a segment
	free    []uint32 // segments without rows
	total   int      // rows
	pick    *rand.Rand
	buffer  []byte
}

func newSegments(f *os.File, size int) segments {
	return segments{file: f, size: size, pick: rand.New(rand.NewPCG(1, 1)), buffer: make([]byte, 0, segmentRows*size)}
}

func (s *segments) offset(place uint32) int64 { return int64(place) * int64(s.size) }

// write writes rows, at most segmentRows, and returns the place of the first. It holds the
// places for nobody yet.
func (s *segments) write(rows []byte) (uint32, error) {
	segment := uint32(len(s.live))
	if n := len(s.free); n > 0 {
		segment = s.free[n-1]
	}
	first := segment * segmentRows
	if _, err := s.file.WriteAt(rows, s.offset(first)); err != nil {
		return 0, fmt.Errorf("write of %d rows: %w", len(rows)/s.size, err)
	}
	if int(segment) == len(s.live) {
		s.live = append(s.live, 0)
		s.holders = append(s.holders, make([]uint32, segmentRows)...)
	} else {
		s.free = s.free[:len(s.free)-1]
	}
	return first, nil
}

// hold gives a place of write to a row.
func (s *segments) hold(place, slot uint32) {
	s.holders[place] = slot + 1
	s.live[place/segmentRows]++
	s.total++
}

// leave makes a place a gap.
func (s *segments) leave(place uint32) {
	s.holders[place] = 0
	s.total--
	if s.live[place/segmentRows]--; s.live[place/segmentRows] == 0 {
		s.free = append(s.free, place/segmentRows)
	}
}

// sparse reports whether segments should be put together.
func (s *segments) sparse() bool {
	used := len(s.live) - len(s.free)
	return used > 8 && s.total < used*segmentRows*9/20
}

// compact puts the rows of a few segments with many gaps into one. moved hears of each row's
// new place.
func (s *segments) compact(moved func(slot, place uint32)) error {
	var chosen []uint32
	rows := 0
	for range 64 {
		// The emptiest of some is about as good as the emptiest of all.
		best := -1
		for range 16 {
			if k := s.pick.IntN(len(s.live)); s.live[k] > 0 && (best < 0 || s.live[k] < s.live[best]) && !slices.Contains(chosen, uint32(k)) {
				best = k
			}
		}
		if best < 0 {
			continue
		}
		if rows+int(s.live[best]) > segmentRows {
			break
		}
		chosen, rows = append(chosen, uint32(best)), rows+int(s.live[best])
	}
	if len(chosen) < 2 {
		return nil
	}
	from := make([]uint32, 0, rows)
	s.buffer = s.buffer[:0]
	whole := make([]byte, segmentRows*s.size)
	for _, k := range chosen {
		first, last := -1, 0
		for i, h := range s.holders[k*segmentRows:][:segmentRows] {
			if h != 0 {
				if first < 0 {
					first = i
				}
				last = i + 1
			}
		}
		run := whole[first*s.size : last*s.size]
		if _, err := s.file.ReadAt(run, s.offset(k*segmentRows+uint32(first))); err != nil {
			return fmt.Errorf("read of a segment: %w", err)
		}
		for i := first; i < last; i++ {
			if place := k*segmentRows + uint32(i); s.holders[place] != 0 {
				from = append(from, place)
				s.buffer = append(s.buffer, whole[i*s.size:(i+1)*s.size]...)
			}
		}
	}
	to, err := s.write(s.buffer)
	if err != nil {
		return err
	}
	for i, place := range from {
		slot := s.holders[place] - 1
		s.leave(place)
		s.hold(to+uint32(i), slot)
		moved(slot, to+uint32(i))
	}
	return nil
}
