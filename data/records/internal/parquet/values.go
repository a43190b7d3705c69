// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Value is a value of a column, with the levels at which it repeats and is defined. It has bits, or text,
// if it is defined up to the level of its node.
type Value struct {
	Repetition, Definition int
	Bits                   uint64 // of a number or truth value
	Text                   []byte
}

// Double is the value of a column of floats or doubles.
func (v Value) Double(k Kind) float64 {
	if k == Float {
		return float64(math.Float32frombits(uint32(v.Bits)))
	}
	return math.Float64frombits(v.Bits)
}

// decoder reads the values of a page that are there.
type decoder interface{ next(v *Value) error }

// Encodings, as the format numbers them.
const (
	plainEncoding           = 0
	plainDictionaryEncoding = 2
	rleEncoding             = 3
	bitPackedEncoding       = 4
	deltaEncoding           = 5
	deltaLengthEncoding     = 6
	deltaTextEncoding       = 7
	dictionaryEncoding      = 8
	splitEncoding           = 9
)

// newDecoder reads the values of a page.
func newDecoder(encoding int64, k Kind, b []byte, dictionary []Value) (decoder, error) {
	size := map[Kind]int{Int32: 4, Float: 4, Int64: 8, Double: 8}[k]
	switch {
	case encoding == plainEncoding && k == Boolean:
		return &truths{&hybrid{packed: b, left: uint64(len(b)) * 8, width: 1}}, nil
	case encoding == plainEncoding && k == ByteArray:
		return &plainTexts{b}, nil
	case encoding == plainEncoding && size > 0:
		return &numbers{b, size}, nil
	case encoding == dictionaryEncoding, encoding == plainDictionaryEncoding:
		return &indexes{b: b, dictionary: dictionary}, nil
	case encoding == rleEncoding && k == Boolean:
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, errShort
		}
		return &truths{&hybrid{b: b[4 : 4+binary.LittleEndian.Uint32(b)], width: 1}}, nil
	case encoding == deltaEncoding && (k == Int32 || k == Int64):
		return newDeltas(b)
	case encoding == deltaLengthEncoding && k == ByteArray:
		return newLengths(b)
	case encoding == deltaTextEncoding && k == ByteArray:
		return newPrefixes(b)
	case encoding == splitEncoding && size > 0:
		return &split{b: b, size: size, num: len(b) / size}, nil
	}
	return nil, fmt.Errorf("values of %s in encoding %d are not read: write it again with pyarrow", k, encoding)
}

type truths struct{ bits *hybrid }

func (d *truths) next(v *Value) (err error) {
	v.Bits, err = d.bits.next()
	return err
}

type numbers struct {
	b    []byte
	size int
}

func (d *numbers) next(v *Value) error {
	if len(d.b) < d.size {
		return errShort
	}
	if d.size == 4 {
		v.Bits = uint64(binary.LittleEndian.Uint32(d.b))
	} else {
		v.Bits = binary.LittleEndian.Uint64(d.b)
	}
	d.b = d.b[d.size:]
	return nil
}

type plainTexts struct{ b []byte }

func (d *plainTexts) next(v *Value) error {
	if len(d.b) < 4 {
		return errShort
	}
	n := uint64(binary.LittleEndian.Uint32(d.b))
	if n > uint64(len(d.b)-4) {
		return errShort
	}
	v.Text, d.b = d.b[4:4+n:4+n], d.b[4+n:]
	return nil
}

// indexes are those of values in the dictionary. A page without values need not have their width.
type indexes struct {
	b          []byte
	dictionary []Value
	runs       *hybrid
}

func (d *indexes) next(v *Value) error {
	if d.runs == nil {
		if len(d.b) == 0 {
			return errShort
		}
		if d.b[0] > 32 {
			return errWidth
		}
		d.runs = &hybrid{b: d.b[1:], width: uint(d.b[0])}
	}
	i, err := d.runs.next()
	if err != nil {
		return err
	}
	if i >= uint64(len(d.dictionary)) {
		return fmt.Errorf("value %d of a dictionary of %d", i, len(d.dictionary))
	}
	v.Bits, v.Text = d.dictionary[i].Bits, d.dictionary[i].Text
	return nil
}

type deltas struct{ *delta }

func newDeltas(b []byte) (decoder, error) {
	d, err := newDelta(b)
	return deltas{d}, err
}

func (d deltas) next(v *Value) (err error) {
	v.Bits, err = d.delta.next()
	return err
}

// lengths are those of texts, which lie behind them.
type lengths struct {
	sizes *delta
	b     []byte
}

func newLengths(b []byte) (*lengths, error) {
	d, err := newDelta(b)
	if err != nil {
		return nil, err
	}
	rest, err := d.rest()
	return &lengths{d, rest}, err
}

func (d *lengths) next(v *Value) error {
	n, err := d.sizes.next()
	if err != nil {
		return err
	}
	if n > uint64(len(d.b)) {
		return errShort
	}
	v.Text, d.b = d.b[:n:n], d.b[n:]
	return nil
}

// prefixes are texts that begin as the one before.
type prefixes struct {
	sizes *delta
	tails *lengths
	last  []byte
}

func newPrefixes(b []byte) (decoder, error) {
	d, err := newDelta(b)
	if err != nil {
		return nil, err
	}
	rest, err := d.rest()
	if err != nil {
		return nil, err
	}
	tails, err := newLengths(rest)
	return &prefixes{sizes: d, tails: tails}, err
}

func (d *prefixes) next(v *Value) error {
	n, err := d.sizes.next()
	if err != nil {
		return err
	}
	if err := d.tails.next(v); err != nil {
		return err
	}
	if n > uint64(len(d.last)) {
		return errShort
	}
	if n > 0 {
		v.Text = append(d.last[:n:n], v.Text...)
	}
	d.last = v.Text
	return nil
}

// split has the first bytes of all numbers, then the second ones, and so on.
type split struct {
	b             []byte
	size, num, at int
}

func (d *split) next(v *Value) error {
	if d.at >= d.num {
		return errShort
	}
	v.Bits = 0
	for i := range d.size {
		v.Bits |= uint64(d.b[i*d.num+d.at]) << (8 * i)
	}
	d.at++
	return nil
}
