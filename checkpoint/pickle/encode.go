// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"
)

// maxEncodeDepth ends the encoding of a value that contains itself.
const maxEncodeDepth = 256

// batch is how many items are set by one instruction, as in Python.
const batch = 1000

type encoder struct {
	w        *bufio.Writer
	protocol int
	texts    map[string]uint32
	globals  map[Global]uint32
	memo     uint32
}

// Encode writes the pickle of a value. protocol is 2 or 4. Beside the types that the decoder
// returns it takes an int and a uint64. Protocol 2 has no bytes and no sets. The error is an
// [Error], or w's error as it is.
func Encode(w io.Writer, v any, protocol int) error {
	if protocol != 2 && protocol != 4 {
		return &Error{Offset: -1, Problem: fmt.Sprintf("protocol %d is not written: use 2 or 4", protocol)}
	}
	e := &encoder{w: bufio.NewWriter(w), protocol: protocol, texts: map[string]uint32{}, globals: map[Global]uint32{}}
	e.w.Write([]byte{opProto, byte(protocol)})
	if err := e.value(v, 0); err != nil {
		return err
	}
	e.w.WriteByte(opStop)
	return e.w.Flush()
}

func refuse(format string, args ...any) error {
	return &Error{Offset: -1, Problem: fmt.Sprintf(format, args...)}
}

// value writes one value. The writer keeps its first error for Flush.
func (e *encoder) value(v any, depth int) error {
	if depth > maxEncodeDepth {
		return refuse("the value is deeper than %d, or contains itself", maxEncodeDepth)
	}
	switch v := v.(type) {
	case nil:
		e.w.WriteByte(opNone)
	case bool:
		if v {
			e.w.WriteByte(opNewTrue)
		} else {
			e.w.WriteByte(opNewFalse)
		}
	case int:
		e.int(int64(v))
	case int64:
		e.int(v)
	case uint64:
		e.big(new(big.Int).SetUint64(v))
	case *big.Int:
		e.big(v)
	case float64:
		e.w.Write(binary.BigEndian.AppendUint64([]byte{opBinFloat}, math.Float64bits(v)))
	case string:
		return e.text(v)
	case []byte:
		if e.protocol < 3 {
			return refuse("protocol %d has no bytes: use protocol 4", e.protocol)
		}
		e.w.Write(binary.LittleEndian.AppendUint32([]byte{opBinBytes}, uint32(len(v))))
		e.w.Write(v)
	case Tuple:
		return e.tuple(v, depth)
	case *List:
		e.w.WriteByte(opEmptyList)
		return e.items(v.Items, opAppends, depth)
	case *Dict:
		e.w.WriteByte(opEmptyDict)
		return e.entries(v.Entries, depth)
	case *Set:
		if e.protocol < 4 {
			return refuse("protocol %d has no sets: use protocol 4", e.protocol)
		}
		if v.Frozen {
			e.w.WriteByte(opMark)
			for _, item := range v.Items {
				if err := e.value(item, depth+1); err != nil {
					return err
				}
			}
			e.w.WriteByte(opFrozenSet)
			return nil
		}
		e.w.WriteByte(opEmptySet)
		return e.items(v.Items, opAddItems, depth)
	case Global:
		return e.global(v)
	case *Object:
		return e.object(v, depth)
	case *Persistent:
		if err := e.value(v.ID, depth+1); err != nil {
			return err
		}
		e.w.WriteByte(opBinPersID)
	default:
		return refuse("a Go value of type %T has no pickle", v)
	}
	return nil
}

func (e *encoder) int(v int64) {
	switch {
	case v >= 0 && v <= math.MaxUint8:
		e.w.Write([]byte{opBinInt1, byte(v)})
	case v >= 0 && v <= math.MaxUint16:
		e.w.Write(binary.LittleEndian.AppendUint16([]byte{opBinInt2}, uint16(v)))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		e.w.Write(binary.LittleEndian.AppendUint32([]byte{opBinInt}, uint32(v)))
	default:
		e.w.Write(binary.LittleEndian.AppendUint64([]byte{opLong1, 8}, uint64(v)))
	}
}

func (e *encoder) big(v *big.Int) {
	if v.IsInt64() {
		e.int(v.Int64())
		return
	}
	n := v.BitLen()/8 + 1
	x := v
	if v.Sign() < 0 {
		x = new(big.Int).Add(v, new(big.Int).Lsh(big.NewInt(1), uint(8*n)))
	}
	b := x.FillBytes(make([]byte, n))
	slices.Reverse(b)
	e.w.Write(binary.LittleEndian.AppendUint32([]byte{opLong4}, uint32(n)))
	e.w.Write(b)
}

// remember gives the value that was just written a number.
func (e *encoder) remember() uint32 {
	n := e.memo
	e.memo++
	if n <= math.MaxUint8 {
		e.w.Write([]byte{opBinPut, byte(n)})
	} else {
		e.w.Write(binary.LittleEndian.AppendUint32([]byte{opLongBinPut}, n))
	}
	return n
}

func (e *encoder) recall(n uint32) {
	if n <= math.MaxUint8 {
		e.w.Write([]byte{opBinGet, byte(n)})
	} else {
		e.w.Write(binary.LittleEndian.AppendUint32([]byte{opLongBinGet}, n))
	}
}

func (e *encoder) text(s string) error {
	if n, ok := e.texts[s]; ok {
		e.recall(n)
		return nil
	}
	if len(s) > math.MaxInt32 {
		return refuse("a text has %d bytes, more than the %d allowed", len(s), math.MaxInt32)
	}
	e.w.Write(binary.LittleEndian.AppendUint32([]byte{opBinUnicode}, uint32(len(s))))
	e.w.WriteString(s)
	e.texts[s] = e.remember()
	return nil
}

func (e *encoder) global(g Global) error {
	if n, ok := e.globals[g]; ok {
		e.recall(n)
		return nil
	}
	if g.Module == "" || g.Name == "" || strings.ContainsAny(g.Module+g.Name, "\n\r") {
		return refuse("%q is no name of a global", g)
	}
	e.w.WriteByte(opGlobal)
	e.w.WriteString(g.Module + "\n" + g.Name + "\n")
	e.globals[g] = e.remember()
	return nil
}

func (e *encoder) tuple(t Tuple, depth int) error {
	if len(t) == 0 {
		e.w.WriteByte(opEmptyTuple)
		return nil
	}
	if len(t) > 3 {
		e.w.WriteByte(opMark)
	}
	for _, v := range t {
		if err := e.value(v, depth+1); err != nil {
			return err
		}
	}
	if len(t) > 3 {
		e.w.WriteByte(opTuple)
	} else {
		e.w.WriteByte(byte(opTuple1 + len(t) - 1))
	}
	return nil
}

func (e *encoder) items(items []any, op byte, depth int) error {
	for part := range slices.Chunk(items, batch) {
		e.w.WriteByte(opMark)
		for _, v := range part {
			if err := e.value(v, depth+1); err != nil {
				return err
			}
		}
		e.w.WriteByte(op)
	}
	return nil
}

func (e *encoder) entries(entries []Entry, depth int) error {
	for part := range slices.Chunk(entries, batch) {
		e.w.WriteByte(opMark)
		for _, entry := range part {
			if err := e.value(entry.Key, depth+1); err != nil {
				return err
			}
			if err := e.value(entry.Value, depth+1); err != nil {
				return err
			}
		}
		e.w.WriteByte(opSetItems)
	}
	return nil
}

func (e *encoder) object(o *Object, depth int) error {
	if err := e.global(o.Class); err != nil {
		return err
	}
	if err := e.tuple(o.Args, depth); err != nil {
		return err
	}
	if o.New {
		e.w.WriteByte(opNewObj)
	} else {
		e.w.WriteByte(opReduce)
	}
	if err := e.items(o.Items, opAppends, depth); err != nil {
		return err
	}
	if err := e.entries(o.Entries, depth); err != nil {
		return err
	}
	if o.State != nil {
		if err := e.value(o.State, depth+1); err != nil {
			return err
		}
		e.w.WriteByte(opBuild)
	}
	return nil
}
