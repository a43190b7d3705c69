// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"encoding/binary"
	"io"
	"math"
)

// message is a message of protocol buffers, in pieces: weights are not copied.
type message struct {
	parts [][]byte
	size  int
}

// The wire types of fields.
const (
	wireVarint  = 0
	wireBytes   = 2
	wireFixed32 = 5
)

func (m *message) add(b []byte) {
	m.parts, m.size = append(m.parts, b), m.size+len(b)
}

// small adds to the last piece.
func (m *message) small(b ...byte) {
	if n := len(m.parts); n > 0 && len(m.parts[n-1])+len(b) <= cap(m.parts[n-1]) {
		m.parts[n-1] = append(m.parts[n-1], b...)
		m.size += len(b)
		return
	}
	m.add(append(make([]byte, 0, max(256, len(b))), b...))
}

func (m *message) tag(field, wire int) { m.varint(uint64(field<<3 | wire)) }

func (m *message) varint(v uint64) { m.small(binary.AppendUvarint(nil, v)...) }

// int adds a field of a whole number.
func (m *message) int(field int, v int64) {
	m.tag(field, wireVarint)
	m.varint(uint64(v))
}

// float adds a field of a 32-bit number.
func (m *message) float(field int, v float32) {
	m.tag(field, wireFixed32)
	m.small(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))...)
}

// text adds a field of text.
func (m *message) text(field int, s string) {
	m.tag(field, wireBytes)
	m.varint(uint64(len(s)))
	m.small([]byte(s)...)
}

// raw adds a field of bytes, which are not copied.
func (m *message) raw(field int, b []byte) {
	m.tag(field, wireBytes)
	m.varint(uint64(len(b)))
	m.add(b[:len(b):len(b)])
}

// message adds a field that is a message.
func (m *message) message(field int, of *message) {
	m.tag(field, wireBytes)
	m.varint(uint64(of.size))
	for _, p := range of.parts {
		m.add(p[:len(p):len(p)])
	}
}

// writeTo writes all pieces.
func (m *message) writeTo(w io.Writer) error {
	for _, p := range m.parts {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
