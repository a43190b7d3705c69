// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// Stream reads the records of lines of JSON one after the other, from where nothing can be
// read twice, such as standard input. It belongs to one goroutine.
type Stream struct {
	name   string
	frames *frameReader
	line   int
	size   int
	begun  bool
	failed error
}

// NewStream reads from r. name is for errors.
func NewStream(ctx context.Context, name string, r io.Reader) *Stream {
	return &Stream{name: name, frames: newFrameReader(ctx, r)}
}

// Next returns the next record; the error is io.EOF after the last. What is wrong with a
// record is an *[Error], after which Next goes on with the line behind.
func (s *Stream) Next() (Record, error) {
	text, err := s.NextLine()
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(text, nil)
	if err != nil {
		return nil, &Error{Path: s.name, Line: s.line, Detail: err.Error()}
	}
	return r, nil
}

// NextLine returns the next line that is not empty, without its end. It holds until the next
// call.
func (s *Stream) NextLine() ([]byte, error) {
	if s.failed != nil {
		return nil, s.failed
	}
	if !s.begun {
		s.begun = true
		if mark, err := s.frames.r.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
			s.frames.r.Discard(len(mark))
		}
	}
	for {
		s.line++
		line, err := s.frames.wholeLine()
		s.size = len(line)
		switch {
		case err != nil:
			s.failed = &Error{Path: s.name, Line: s.line, Detail: err.Error()}
			return nil, s.failed
		case line == nil:
			s.failed = io.EOF
			return nil, s.failed
		case len(line) > maxRecord:
			return nil, &Error{Path: s.name, Line: s.line, Detail: fmt.Sprintf("the line has more than %d MiB: split it, or leave it out", maxRecord>>20)}
		case len(bytes.TrimSpace(line)) > 0:
			return bytes.TrimRight(line, "\r\n"), nil
		}
	}
}

// Line is the number of the line that was read last, from 1.
func (s *Stream) Line() int { return s.line }

// Len is the number of bytes of that line.
func (s *Stream) Len() int { return s.size }

// At says of an error of what the last record has, such as a [FieldError], in which line it is.
func (s *Stream) At(err error) error { return at(s.name, s.line, 0, err) }

// wholeLine returns the next line with its end, nil at the end. Of one that is longer than a
// record may be it returns a part that is too long, and passes over the rest.
func (r *frameReader) wholeLine() (line []byte, err error) {
	for {
		part, err := r.r.ReadSlice('\n')
		if len(line) <= maxRecord {
			line = append(line, part...)
		}
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, endsFile(err)
		}
	}
}
