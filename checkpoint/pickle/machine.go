// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"slices"
)

// The instructions, by Python's names.
const (
	opMark           = '('
	opStop           = '.'
	opPop            = '0'
	opPopMark        = '1'
	opDup            = '2'
	opBinInt         = 'J'
	opBinInt1        = 'K'
	opBinInt2        = 'M'
	opNone           = 'N'
	opBinPersID      = 'Q'
	opReduce         = 'R'
	opBinString      = 'T'
	opShortBinString = 'U'
	opBinUnicode     = 'X'
	opAppend         = 'a'
	opBuild          = 'b'
	opGlobal         = 'c'
	opDict           = 'd'
	opEmptyDict      = '}'
	opAppends        = 'e'
	opBinGet         = 'h'
	opLongBinGet     = 'j'
	opList           = 'l'
	opEmptyList      = ']'
	opBinPut         = 'q'
	opLongBinPut     = 'r'
	opSetItem        = 's'
	opTuple          = 't'
	opEmptyTuple     = ')'
	opSetItems       = 'u'
	opBinFloat       = 'G'

	opProto    = 0x80
	opNewObj   = 0x81
	opTuple1   = 0x85
	opTuple2   = 0x86
	opTuple3   = 0x87
	opNewTrue  = 0x88
	opNewFalse = 0x89
	opLong1    = 0x8a
	opLong4    = 0x8b

	opBinBytes      = 'B'
	opShortBinBytes = 'C'

	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opNewObjEx        = 0x92
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
	opByteArray8      = 0x96
)

// refused are instructions that the decoder knows and does not run.
var refused = map[byte]string{
	'I': "INT of protocol 0", 'L': "LONG of protocol 0", 'F': "FLOAT of protocol 0", 'S': "STRING of protocol 0", 'V': "UNICODE of protocol 0",
	'P': "PERSID of protocol 0", 'g': "GET of protocol 0", 'p': "PUT of protocol 0", 'i': "INST of protocol 0", 'o': "OBJ of protocol 1",
	0x82: "EXT1, a global by number", 0x83: "EXT2, a global by number", 0x84: "EXT4, a global by number",
	opNewObjEx: "NEWOBJ_EX, an object with named arguments",
	0x97:       "NEXT_BUFFER, data outside the pickle", 0x98: "READONLY_BUFFER, data outside the pickle",
}

// run runs the instructions up to STOP and returns the value.
func (d *decoder) run() any {
	for {
		d.at = d.pos
		if d.pos == len(d.text) {
			d.fail("ends without its last instruction, STOP")
		}
		op := d.text[d.pos]
		d.pos++
		if op == opStop {
			v := d.pop()
			if len(d.stack) > 0 || len(d.marks) > 0 {
				d.fail("leaves values on the stack at its end")
			}
			return v
		}
		if !d.scalar(op) && !d.container(op) && !d.call(op) {
			if name, known := refused[op]; known {
				d.fail("has the instruction %s, which is refused: save with protocol 2 or a later one", name)
			}
			d.fail("has the unknown instruction %#02x", op)
		}
	}
}

// scalar runs an instruction that pushes a plain value; false for another instruction.
func (d *decoder) scalar(op byte) bool {
	switch op {
	case opNone:
		d.push(nil)
	case opNewTrue:
		d.push(true)
	case opNewFalse:
		d.push(false)
	case opBinInt:
		d.push(int64(int32(d.uint32())))
	case opBinInt1:
		d.push(int64(d.uint8()))
	case opBinInt2:
		d.push(int64(binary.LittleEndian.Uint16(d.take(2))))
	case opLong1:
		d.push(d.long(d.uint8()))
	case opLong4:
		d.push(d.long(int(int32(d.uint32()))))
	case opBinFloat:
		d.push(d.float())
	case opBinUnicode:
		d.push(d.utf8(d.take(int(d.uint32()))))
	case opShortBinUnicode:
		d.push(d.utf8(d.take(d.uint8())))
	case opBinUnicode8:
		d.push(d.utf8(d.take(d.length64())))
	case opBinString: // a str of Python 2
		d.push(d.utf8(d.take(int(int32(d.uint32())))))
	case opShortBinString:
		d.push(d.utf8(d.take(d.uint8())))
	case opBinBytes:
		d.push(slices.Clone(d.take(int(d.uint32()))))
	case opShortBinBytes:
		d.push(slices.Clone(d.take(d.uint8())))
	case opBinBytes8, opByteArray8:
		d.push(slices.Clone(d.take(d.length64())))
	default:
		return false
	}
	return true
}

// container runs an instruction on containers, marks or the memo; false for another one.
func (d *decoder) container(op byte) bool {
	switch op {
	case opProto:
		if v := d.uint8(); v < 2 || v > 5 {
			d.fail("has protocol %d: the protocols 2 to 5 are read", v)
		}
	case opFrame:
		if n := d.length64(); n > len(d.text)-d.pos {
			d.fail("has a frame of %d bytes, and %d are left", n, len(d.text)-d.pos)
		}
	case opMark:
		if len(d.marks) > 2*d.o.Depth {
			d.fail("has values in values deeper than the %d allowed", d.o.Depth)
		}
		d.marks = append(d.marks, len(d.stack))
	case opPop:
		// Python takes a mark with it if there is nothing above.
		if n := len(d.marks); n > 0 && d.marks[n-1] == len(d.stack) {
			d.marks = d.marks[:n-1]
		} else {
			d.pop()
		}
	case opPopMark:
		d.popMark()
	case opDup:
		v := d.top()
		if id := identity(v); id != nil {
			d.shared[id] = true
		}
		d.push(v)
	case opEmptyTuple:
		d.push(Tuple{})
	case opTuple1, opTuple2, opTuple3:
		d.push(Tuple(d.popMany(int(op-opTuple1) + 1)))
	case opTuple:
		d.push(Tuple(d.popMark()))
	case opEmptyList:
		d.push(&List{})
	case opList:
		d.push(&List{Items: d.popMark()})
	case opEmptyDict:
		d.push(&Dict{})
	case opDict:
		items := d.popMark()
		d.push(&Dict{})
		d.setItems(items)
	case opEmptySet:
		d.push(&Set{})
	case opFrozenSet:
		d.push(&Set{Items: d.popMark(), Frozen: true})
	case opAppend:
		d.append(d.popMany(1))
	case opAppends:
		d.append(d.popMark())
	case opSetItem:
		d.setItems(d.popMany(2))
	case opSetItems:
		d.setItems(d.popMark())
	case opAddItems:
		items := d.popMark()
		s, ok := d.top().(*Set)
		if !ok || s.Frozen {
			d.fail("adds values to something that is no set")
		}
		s.Items = append(s.Items, items...)
	case opBinPut:
		d.put(uint32(d.uint8()))
	case opLongBinPut:
		d.put(d.uint32())
	case opMemoize:
		d.put(uint32(len(d.memo)))
	case opBinGet:
		d.get(uint32(d.uint8()))
	case opLongBinGet:
		d.get(d.uint32())
	default:
		return false
	}
	return true
}

func (d *decoder) append(items []any) {
	switch into := d.top().(type) {
	case *List:
		into.Items = append(into.Items, items...)
	case *Object:
		into.Items = append(into.Items, items...)
	default:
		d.fail("appends values to something that is no list")
	}
}

func (d *decoder) setItems(items []any) {
	if len(items)%2 != 0 {
		d.fail("sets a key without a value")
	}
	var entries *[]Entry
	switch into := d.top().(type) {
	case *Dict:
		entries = &into.Entries
	case *Object:
		entries = &into.Entries
	default:
		d.fail("sets keys of something that is no dict")
	}
	for i := 0; i < len(items); i += 2 {
		*entries = append(*entries, Entry{items[i], items[i+1]})
	}
}

// call runs an instruction on globals and objects; false for another one.
func (d *decoder) call(op byte) bool {
	switch op {
	case opGlobal:
		module := d.line()
		d.global(module, d.line())
	case opStackGlobal:
		names := d.popMany(2)
		module, ok := names[0].(string)
		name, ok2 := names[1].(string)
		if !ok || !ok2 {
			d.fail("names a global by something that is no text")
		}
		d.global(module, name)
	case opReduce, opNewObj:
		parts := d.popMany(2)
		class, ok := parts[0].(Global)
		if !ok {
			d.fail("calls something that is no global")
		}
		args, ok := parts[1].(Tuple)
		if !ok {
			d.fail("calls %v with arguments that are no tuple", class)
		}
		d.push(&Object{Class: class, Args: args, New: op == opNewObj})
	case opBuild:
		state := d.popMany(1)[0]
		o, ok := d.top().(*Object)
		if !ok || o.State != nil {
			d.fail("gives a state to something that takes none")
		}
		o.State = state
	case opBinPersID:
		d.push(&Persistent{d.pop()})
	default:
		return false
	}
	return true
}
