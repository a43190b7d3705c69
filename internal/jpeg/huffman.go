// SPDX-License-Identifier: Apache-2.0

package jpeg

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// lookBits is how many bits a table is asked with at once. Nine of ten codes of
// photographs are shorter, their values' bits included.
const lookBits = 10

// table decodes the codes of a Huffman table.
//
// An entry of look is for the next lookBits bits. Where they hold a code and
// the value's bits behind it, bits 16 on are the value, which is not 0, bits 8
// to 15 how many zeros go before it, bits 0 to 7 the length of all. Where they
// hold a code alone, the value is 0, bits 8 to 15 are its symbol and 0 to 7 its
// length. Where the code is longer, the entry is 0.
type table struct {
	defined bool // by the file
	valid   bool // it is a code
	look    [1 << lookBits]int32
	codes   [1 << lookBits]uint16 // the code alone: its symbol, and in the low byte its length or 0
	symbols [256]uint8
	// For longer codes: the least that is not of a length, with its bits at the top of 16,
	// and what to add to a code for the index of its symbol.
	limit [18]uint32
	delta [17]int32
}

// build makes the table of counts (codes of 1 to 16 bits) and their symbols,
// which is valid if they are a code. No code is all ones. The symbols of a table
// for DC coefficients are sizes up to 15.
func (t *table) build(counts [16]byte, symbols []byte, forDC bool) {
	t.valid = false
	if forDC && slices.ContainsFunc(symbols, func(s byte) bool { return s > 15 }) {
		return
	}
	t.look, t.codes = [1 << lookBits]int32{}, [1 << lookBits]uint16{}
	clear(t.symbols[:])
	copy(t.symbols[:], symbols)
	code, k := uint32(0), 0
	for length := 1; length <= 16; length++ {
		n := int(counts[length-1])
		t.delta[length] = int32(k) - int32(code)
		if n > 0 && code+uint32(n) >= 1<<length {
			return
		}
		for range n {
			if length <= lookBits {
				t.fill(code, length, t.symbols[k])
			}
			code++
			k++
		}
		t.limit[length] = code << (16 - length)
		code <<= 1
	}
	t.limit[17] = 1 << 16
	t.valid = true
}

// fill sets the entries that begin with a code.
func (t *table) fill(code uint32, length int, symbol uint8) {
	size, rest := int(symbol&15), lookBits-length
	for low := range uint32(1) << rest {
		e := int32(symbol)<<8 | int32(length)
		if size > 0 && size <= rest {
			v := int32(low >> (rest - size))
			if v < 1<<(size-1) {
				v -= 1<<size - 1
			}
			e = v<<16 | int32(symbol>>4)<<8 | int32(length+size)
		}
		t.look[code<<rest|low] = e
		t.codes[code<<rest|low] = uint16(symbol)<<8 | uint16(length)
	}
}

// long decodes a code of more than lookBits bits that begins acc. A code that
// does not exist is the symbol 0 of 17 bits, as many as libjpeg looks at.
func (t *table) long(acc uint64) (symbol uint8, length uint) {
	top := uint32(acc >> 48)
	for n := lookBits + 1; n <= 16; n++ {
		if top < t.limit[n] {
			return t.symbols[uint8(int32(top>>(16-n))+t.delta[n])], uint(n)
		}
	}
	return 0, 17
}

// reader reads the bits of a scan.
//
// The bytes between two restarts, without what is stuffed, lie in buf, followed
// by zeros. acc has the next n bits at its top.
type reader struct {
	buf []byte
	pos int
	acc uint64
	n   uint
	end int  // of the bytes, the zeros are behind it
	cut bool // they are the last of the file, with no marker behind them
}

// load takes over the entropy coded bytes from pos on up to the next marker,
// and returns where that is.
func (r *reader) load(file []byte, pos int) int {
	r.buf, r.pos, r.acc, r.n, r.cut = r.buf[:0], 0, 0, 0, false
	for {
		i := bytes.IndexByte(file[pos:], 0xff)
		if i < 0 {
			r.buf = append(r.buf, file[pos:]...)
			pos, r.cut = len(file), true
			break
		}
		r.buf = append(r.buf, file[pos:pos+i]...)
		pos += i
		next := pos + 1
		for next < len(file) && file[next] == 0xff { // fill bytes
			next++
		}
		if next == len(file) {
			pos, r.cut = next, true
			break
		}
		if file[next] != 0 {
			break
		}
		r.buf = append(r.buf, 0xff)
		pos = next + 1
	}
	r.close()
	return pos
}

// empty takes over no bytes.
func (r *reader) empty() {
	r.buf, r.pos, r.acc, r.n, r.cut = r.buf[:0], 0, 0, 0, false
	r.close()
}

func (r *reader) close() {
	r.end = len(r.buf)
	r.buf = append(r.buf, make([]byte, 16)...)
}

// fill makes sure of 56 bits.
func (r *reader) fill() {
	if b := r.buf[min(r.pos, len(r.buf)):]; len(b) >= 8 {
		r.acc |= binary.BigEndian.Uint64(b) >> (r.n & 63)
		r.pos += int(63-r.n) >> 3
		r.n |= 56
		return
	}
	r.drained()
}

// drained goes on with zeros, and counts them by pos.
func (r *reader) drained() {
	r.pos += int(63-r.n) >> 3
	r.n |= 56
}

// over reports whether more bits were taken than there are.
func (r *reader) over() bool { return 8*r.pos-int(r.n) > 8*r.end }

// take returns the next k bits, at most 16.
func (r *reader) take(k uint) uint32 {
	if r.n < k {
		r.fill()
	}
	v := uint32(r.acc >> 48 >> (16 - k))
	r.acc <<= k & 63
	r.n -= k
	return v
}

// symbol decodes one.
func (r *reader) symbol(t *table) uint8 {
	if r.n < 17 {
		r.fill()
	}
	e := t.codes[r.acc>>(64-lookBits)]
	symbol, length := uint8(e>>8), uint(e&255)
	if length == 0 {
		symbol, length = t.long(r.acc)
	}
	r.acc <<= length & 63
	r.n -= length
	return symbol
}

// extend makes a signed value of its size and bits (T.81, table F.2).
func extend(v uint32, size uint) int32 {
	if size == 0 {
		return 0
	}
	if v < 1<<(size-1) {
		return int32(v) - (1<<size - 1)
	}
	return int32(v)
}

// zigzag maps the order of a file to rows of 8. A run of zeros can lead past 63
// in a damaged file: there it is 63.
var zigzag = [128]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
	63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
	63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
}

// block decodes the coefficients of a block of a sequential scan, times the
// quantisation, into coef, which is zero before. It returns whether there is
// more than the first.
func (r *reader) block(coef *[64]int16, dc, ac *table, quant *[64]uint16, pred *int32) (hasAC bool) {
	size := uint(r.symbol(dc) & 15)
	*pred += extend(r.take(size), size)
	coef[0] = int16(*pred * int32(quant[0]))
	acc, n, pos, buf := r.acc, r.n, r.pos, r.buf
	for k := uint(1); k < 64; {
		if pos <= len(buf)-8 {
			acc |= binary.BigEndian.Uint64(buf[pos:]) >> (n & 63)
		}
		pos += int(63-n) >> 3
		n |= 56
		// Twice a code with its value in a look, which is 20 bits at most, leaves
		// enough for the longest code and value.
		e := ac.look[acc>>(64-lookBits)]
		if e>>16 != 0 {
			k += uint(e>>8) & 255
			coef[zigzag[k&127]] = int16(e >> 16 * int32(quant[k&63]))
			acc <<= uint(e) & 63
			n -= uint(e) & 255
			if k++; k > 63 {
				break
			}
			e = ac.look[acc>>(64-lookBits)]
			if e>>16 != 0 {
				k += uint(e>>8) & 255
				coef[zigzag[k&127]] = int16(e >> 16 * int32(quant[k&63]))
				acc <<= uint(e) & 63
				n -= uint(e) & 255
				if k++; k > 63 {
					break
				}
				e = ac.look[acc>>(64-lookBits)]
				if e>>16 != 0 {
					k += uint(e>>8) & 255
					coef[zigzag[k&127]] = int16(e >> 16 * int32(quant[k&63]))
					acc <<= uint(e) & 63
					n -= uint(e) & 255
					k++
					continue
				}
			}
		}
		symbol, length := uint8(e>>8), uint(e)&255
		if length == 0 {
			symbol, length = ac.long(acc)
		}
		acc <<= length & 63
		n -= length
		size := uint(symbol & 15)
		if size == 0 {
			if symbol != 0xf0 {
				r.acc, r.n, r.pos = acc, n, pos
				return k > 1
			}
			k += 16
			continue
		}
		k += uint(symbol >> 4)
		v := extend(uint32(acc>>48>>(16-size)), size)
		acc <<= size
		n -= size
		coef[zigzag[k&127]] = int16(v * int32(quant[k&63]))
		k++
	}
	r.acc, r.n, r.pos = acc, n, pos
	return true
}

// skip passes over a block of a sequential scan.
func (r *reader) skip(dc, ac *table, pred *int32) {
	size := uint(r.symbol(dc) & 15)
	*pred += extend(r.take(size), size)
	acc, n, pos, buf := r.acc, r.n, r.pos, r.buf
	for k := uint(1); k < 64; {
		if pos <= len(buf)-8 {
			acc |= binary.BigEndian.Uint64(buf[pos:]) >> (n & 63)
		}
		pos += int(63-n) >> 3
		n |= 56
		e := ac.look[acc>>(64-lookBits)]
		if e>>16 != 0 {
			k += uint(e>>8)&255 + 1
			acc <<= uint(e) & 63
			n -= uint(e) & 255
			if k > 63 {
				break
			}
			e = ac.look[acc>>(64-lookBits)]
			if e>>16 != 0 {
				k += uint(e>>8)&255 + 1
				acc <<= uint(e) & 63
				n -= uint(e) & 255
				continue
			}
		}
		symbol, length := uint8(e>>8), uint(e)&255
		if length == 0 {
			symbol, length = ac.long(acc)
		}
		size := uint(symbol & 15)
		acc <<= (length + size) & 63
		n -= length + size
		if size == 0 && symbol != 0xf0 {
			break
		}
		k += uint(symbol>>4) + 1
	}
	r.acc, r.n, r.pos = acc, n, pos
}
