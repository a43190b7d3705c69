// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/records"
)

// packWindow is how many sequences are put into rows at a time: a row has sequences that lie near each
// other in the files.
const packWindow = 1 << 16

// packing says which sequences are in which row. Of a record that is cut into pieces each is a sequence.
type packing struct {
	items   []item
	starts  []uint32 // of the rows among the items, and the end
	sum     uint32   // of both
	tokens  int64    // in all rows
	left    int      // records that cannot be used
	first   error    // why the first of them cannot
	context int
}

// item is a piece of a record.
type item struct{ record, piece uint32 }

func (p *packing) len() int { return len(p.starts) - 1 }

// String says what came of it, for people.
func (p *packing) String() string {
	text := fmt.Sprintf("packed %d sequences into %d rows of up to %d tokens, %.1f %% full", len(p.items), p.len(), p.context, 100*float64(p.tokens)/float64(p.len())/float64(p.context+1))
	if p.left > 0 {
		text += fmt.Sprintf("; %d records are left out, the first: %v", p.left, p.first)
	}
	return text
}

// pack encodes all records once, to learn how long they are, and puts them into rows. The lengths are kept
// in the cache.
func (s *source) pack(ctx context.Context) (*packing, error) {
	n := s.numTraining()
	p := &packing{context: s.Context}
	name := fmt.Sprintf("lengths %s %s %s end=%d context=%d all=%t skip=%t columns=%v", s.kind, s.set.Fingerprint(), s.Tokenizer.Fingerprint(), s.EndOfText, s.Context, s.All, s.Skip, s.columns)
	if s.kind != Text {
		name += " " + s.templatePrint()
	}
	kept, err := s.set.Keep(name, func() ([]byte, error) {
		s.Notice(fmt.Sprintf("encoding %s once, to pack it", s.set.Name()))
		lengths, err := s.lengths(ctx, n)
		if err != nil {
			return nil, err
		}
		b := make([]byte, 0, 4*n)
		for _, l := range lengths {
			b = binary.LittleEndian.AppendUint32(b, l)
		}
		return b, nil
	})
	if err != nil {
		return nil, err
	}
	if len(kept) != 4*n {
		return nil, fmt.Errorf("sequences: the cache has the lengths of %d records of %s, want %d: remove it (COHORT_CACHE)", len(kept)/4, s.set.Name(), n)
	}
	lengths := make([]uint32, n)
	for i := range lengths {
		lengths[i] = binary.LittleEndian.Uint32(kept[4*i:])
		if lengths[i] == 0 {
			if p.left++; p.left == 1 {
				_, p.first = s.read(trainingAt(i, s.set.Len()))
			}
		}
	}
	p.fill(lengths, s.numPieces)
	if p.len() == 0 {
		return nil, &records.Error{Path: s.set.Name(), Detail: fmt.Sprintf("has no record that can be used: %v", p.first)}
	}
	return p, nil
}

// lengths encodes n records on all processors. A length of 0 is of a record that cannot be used.
func (s *source) lengths(ctx context.Context, n int) ([]uint32, error) {
	lengths := make([]uint32, n)
	const portion = 64
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	worst, failed := n, error(nil) // the first record that cannot be used
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				from := int(next.Add(portion)) - portion
				if from >= n || context.Cause(ctx) != nil {
					return
				}
				for i := from; i < min(from+portion, n); i++ {
					q, err := s.read(trainingAt(i, s.set.Len()))
					if err == nil {
						lengths[i] = uint32(len(q.tokens))
						continue
					}
					if s.Skip {
						continue
					}
					mu.Lock()
					if i < worst {
						worst, failed = i, err
					}
					mu.Unlock()
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, s.advise(failed)
	}
	return lengths, nil
}

// fill puts sequences into rows: of each window the longest first, into the row with the least room that
// is enough (best fit decreasing).
func (p *packing) fill(lengths []uint32, pieces func(tokens int) int) {
	p.starts = []uint32{0}
	room := p.context + 1
	b := newBins(room)
	var window [][]item // by length
	reset := func() {
		if window == nil {
			window = make([][]item, room+1)
		}
		for i := range window {
			window[i] = window[i][:0]
		}
	}
	reset()
	held := 0
	flush := func() {
		b.clear()
		for l := room; l > 0; l-- {
			for _, it := range window[l] {
				b.put(it, l)
			}
		}
		for _, row := range b.rows {
			p.items = append(p.items, row...)
			p.starts = append(p.starts, uint32(len(p.items)))
		}
		reset()
		held = 0
	}
	for i, l := range lengths {
		for piece := range pieces(int(l)) {
			n := min(int(l)-piece*p.context, room)
			window[n] = append(window[n], item{uint32(i), uint32(piece)})
			p.tokens += int64(n)
			if held++; held == packWindow {
				flush()
			}
		}
	}
	flush()
	h := crc32.NewIEEE()
	var b8 [8]byte
	for _, it := range p.items {
		binary.LittleEndian.PutUint32(b8[:], it.record)
		binary.LittleEndian.PutUint32(b8[4:], it.piece)
		h.Write(b8[:])
	}
	for _, s := range p.starts {
		binary.LittleEndian.PutUint32(b8[:], s)
		h.Write(b8[:4])
	}
	p.sum = h.Sum32()
}

// bins are rows that are being filled.
type bins struct {
	room  int
	rows  [][]item
	with  [][]int  // rows by the room that they have left
	found []uint64 // a bit for each room that a row has left
}

func newBins(room int) *bins {
	return &bins{room: room, with: make([][]int, room+1), found: make([]uint64, room/64+1)}
}

func (b *bins) clear() {
	b.rows = nil
	for i := range b.with {
		b.with[i] = b.with[i][:0]
	}
	clear(b.found)
}

// least is the least room of at least n tokens that a row has left, -1 for none.
func (b *bins) least(n int) int {
	for w := n / 64; w < len(b.found); w++ {
		word := b.found[w]
		if w == n/64 {
			word &= ^uint64(0) << (n % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// put puts an item of n tokens into a row.
func (b *bins) put(it item, n int) {
	at, left := len(b.rows), b.least(n)
	if left < 0 {
		b.rows = append(b.rows, nil)
		left = b.room
	} else {
		rows := b.with[left]
		at = rows[len(rows)-1]
		if b.with[left] = rows[:len(rows)-1]; len(rows) == 1 {
			b.found[left/64] &^= 1 << (left % 64)
		}
	}
	b.rows[at] = append(b.rows[at], it)
	if left -= n; left > 0 {
		b.with[left] = append(b.with[left], at)
		b.found[left/64] |= 1 << (left % 64)
	}
}

// packed makes row i.
func (s *source) packed(i int) (data.TokenWindow, error) {
	items := s.packs.items[s.packs.starts[i]:s.packs.starts[i+1]]
	parts := make([]sequence, len(items))
	for j, it := range items {
		record := trainingAt(int(it.record), s.set.Len())
		q, err := s.read(record)
		if err != nil {
			return data.TokenWindow{}, err // it could be read when it was packed
		}
		if int(it.piece) >= s.numPieces(len(q.tokens)) {
			return data.TokenWindow{}, s.set.At(record, errors.New("it was longer when it was packed: remove the cache (COHORT_CACHE)"))
		}
		parts[j] = q.piece(int(it.piece), s.Context)
	}
	return row(s.Tokenizer, parts...), nil
}
