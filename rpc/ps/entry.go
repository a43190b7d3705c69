// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// The kinds of entries of a server's log. Everything that changes what a server has is an
// entry, and the server has exactly what its entries say, in their order.
const (
	entrySettings = 1 // JSON of settings
	entryPush     = 2
	entryRemove   = 3
	entryLeave    = 4
	entryBegin    = 5
	entryInsert   = 6
	entryProgress = 7 // JSON of Progress, in the log of a server that has taken rows from others
)

// push is the gradients of a step of a worker, as far as one server has the keys.
type push struct {
	client, number uint64
	worker         int
	step           int64
	parts          []part
}

// own gives a push memory of its own. Until then it lies in that of the request or of the
// log, which is used again.
func (p *push) own() {
	for i := range p.parts {
		q := &p.parts[i]
		q.keys, q.grads = slices.Clone(q.keys), slices.Clone(q.grads)
	}
}

// part is the gradient of a table.
type part struct {
	table int       // its number
	lr    float64   // learning rate, 0: that of the last push that had one, or the optimizer's
	keys  []int64   // increasing
	grads []float32 // [keys, width]
}

// removal takes rows out of a table.
type removal struct {
	table int
	step  uint64
	keys  []int64
}

// leaving says that a worker makes no more steps.
type leaving struct {
	client uint64
	worker int
}

// width is of a part whose table is not at hand.
func (p *part) width() int {
	if len(p.keys) == 0 {
		return 0
	}
	return len(p.grads) / len(p.keys)
}

// bytes is the memory of the gradients of a push, 0 for none.
func (p *push) bytes() (n int) {
	if p == nil {
		return 0
	}
	for i := range p.parts {
		n += 8*len(p.parts[i].keys) + 4*len(p.parts[i].grads)
	}
	return n
}

func (p *push) encode() []byte {
	size := 1 + 8 + 8 + 8 + 8 + 4
	for i := range p.parts {
		size += 20 + 8*len(p.parts[i].keys) + 4*len(p.parts[i].grads)
	}
	b := append(make([]byte, 0, size), entryPush)
	b = binary.LittleEndian.AppendUint64(b, p.client)
	b = binary.LittleEndian.AppendUint64(b, p.number)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.worker))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.step))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.parts)))
	for i := range p.parts {
		q := &p.parts[i]
		b = binary.LittleEndian.AppendUint32(b, uint32(q.table))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(q.lr))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(q.keys)))
		b = binary.LittleEndian.AppendUint32(b, uint32(q.width()))
		b = appendInt64s(b, q.keys)
		b = appendFloat32s(b, q.grads)
	}
	return b
}

func (r *removal) encode() []byte {
	b := append(make([]byte, 0, 17+8*len(r.keys)), entryRemove)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.table))
	b = binary.LittleEndian.AppendUint64(b, r.step)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.keys)))
	return appendInt64s(b, r.keys)
}

func (l *leaving) encode() []byte {
	b := binary.LittleEndian.AppendUint64([]byte{entryLeave}, l.client)
	return binary.LittleEndian.AppendUint64(b, uint64(l.worker))
}

func appendInt64s(b []byte, v []int64) []byte {
	return append(b, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))...)
}

func appendFloat32s(b []byte, v []float32) []byte {
	return append(b, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))...)
}

// entryReader reads an entry, which may be damaged.
type entryReader struct {
	b   []byte
	bad bool
}

func (r *entryReader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *entryReader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *entryReader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *entryReader) int64s(n int) []int64 {
	b := r.take(8 * n)
	out := make([]int64, len(b)/8)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 8*len(out)), b)
	return out
}

func (r *entryReader) float32s(n int) []float32 {
	b := r.take(4 * n)
	out := make([]float32, len(b)/4)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 4*len(out)), b)
	return out
}

var errEntry = errors.New("it is damaged, or of another version of Cohort")

// decodeEntry returns the settings, push, removal, leaving or progress of an entry.
func decodeEntry(b []byte) (any, error) {
	if len(b) == 0 {
		return nil, errEntry
	}
	r := &entryReader{b: b[1:]}
	var out any
	switch b[0] {
	case entrySettings:
		s, err := decodeSettings(r.b)
		return &s, err
	case entryProgress:
		return decodeProgress(r.b)
	case entryPush:
		out = r.push()
	case entryRemove:
		q := &removal{table: int(r.uint32()), step: r.uint64()}
		q.keys = r.int64s(int(r.uint32()))
		out = q
	case entryLeave:
		out = &leaving{r.uint64(), int(int64(r.uint64()))}
	case entryBegin:
		out = &beginning{int64(r.uint64())}
	case entryInsert:
		out = r.insertion()
	default:
		return nil, fmt.Errorf("an entry of kind %d: %w", b[0], errEntry)
	}
	if r.bad || len(r.b) > 0 {
		return nil, errEntry
	}
	return out, nil
}

func (r *entryReader) push() *push {
	p := &push{client: r.uint64(), number: r.uint64(), worker: int(int64(r.uint64())), step: int64(r.uint64())}
	for n := r.uint32(); n > 0 && !r.bad; n-- {
		q := part{table: int(r.uint32()), lr: math.Float64frombits(r.uint64())}
		keys, width := int(r.uint32()), int(r.uint32())
		q.keys = r.int64s(keys)
		if int64(keys)*int64(width) > int64(len(r.b)) || keys == 0 && width != 0 {
			r.bad = true
			break
		}
		q.grads = r.float32s(keys * width)
		p.parts = append(p.parts, q)
	}
	return p
}
