// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
)

// What a file may ask for. A quote that is never closed would otherwise have
// the rest of the file taken for one field.
const (
	maxRecordBytes = 1 << 20
	maxFields      = 1 << 14
)

// scanner takes records of delimited text apart, by the rules of RFC 4180 as
// encoding/csv has them: quoted fields may hold separators, line ends and
// doubled quotes; a quote elsewhere is an error; empty lines do not count.
// Nothing is allocated for a record once its buffers have grown.
type scanner struct {
	r     *bufio.Reader
	path  string
	comma byte

	numLines int     // read so far
	offset   int64   // of the next line in the file
	until    int64   // records that begin here or later are not read
	whole    []byte  // a line that does not fit r's buffer
	text     []byte  // the fields behind each other
	fields   []place // of the record
	lost     bool    // where the next record begins is not known
}

// place is where a field ends in text, and where it began in the file.
type place struct{ end, line, column int }

func newScanner(r io.Reader, path string, comma byte) *scanner {
	s := &scanner{r: bufio.NewReaderSize(r, 64<<10), path: path, comma: comma, until: math.MaxInt64}
	if mark, err := s.r.Peek(3); err == nil && string(mark) == "\xef\xbb\xbf" {
		s.r.Discard(3) // a byte order mark is no part of the first name
		s.offset = 3
	}
	return s
}

// moveTo goes on at an offset of the file, before which there are numLines lines.
func (s *scanner) moveTo(f io.ReadSeeker, offset int64, numLines int) error {
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("table: %s: %w", s.path, err)
	}
	s.r.Reset(f)
	s.offset, s.numLines = offset, numLines
	return nil
}

func (s *scanner) fail(line, column int, format string, args ...any) error {
	return &RowError{Path: s.path, Line: line, Column: column, Detail: fmt.Sprintf(format, args...)}
}

// numFields is the number of fields of the record.
func (s *scanner) numFields() int { return len(s.fields) }

// field returns a field of the record, valid until the next.
func (s *scanner) field(i int) []byte {
	begin := 0
	if i > 0 {
		begin = s.fields[i-1].end
	}
	return s.text[begin:s.fields[i].end]
}

// line reads a line with its end, which is \n whatever it was; the last of a
// file may have none. It is valid until the next.
func (s *scanner) line() ([]byte, error) {
	line, err := s.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		s.whole = append(s.whole[:0], line...)
		for err == bufio.ErrBufferFull {
			if len(s.whole) > maxRecordBytes {
				s.lost = true
				return nil, s.fail(s.numLines+1, 0, "the line is longer than %d bytes: is this a text of rows?", maxRecordBytes)
			}
			line, err = s.r.ReadSlice('\n')
			s.whole = append(s.whole, line...)
		}
		line = s.whole
	}
	if err != nil && !(err == io.EOF && len(line) > 0) {
		if err != io.EOF {
			err = fmt.Errorf("table: %s:%d: %w", s.path, s.numLines+1, err)
		}
		return nil, err
	}
	s.numLines++
	s.offset += int64(len(line))
	if err == io.EOF {
		return bytes.TrimSuffix(line, []byte("\r")), nil
	}
	if n := len(line); n >= 2 && line[n-2] == '\r' {
		line[n-2] = '\n'
		line = line[:n-1]
	}
	return line, nil
}

// next reads a record. The error at the end of the file is io.EOF, that of bad
// text a *RowError.
func (s *scanner) next() error {
	if s.offset >= s.until {
		return io.EOF
	}
	line, err := s.line()
	for err == nil && len(bytes.TrimSuffix(line, []byte("\n"))) == 0 {
		if s.offset >= s.until {
			return io.EOF
		}
		line, err = s.line()
	}
	if err != nil {
		return err
	}
	s.text, s.fields = s.text[:0], s.fields[:0]
	rest := line
	for more := true; more; {
		if len(s.fields) == maxFields {
			return s.fail(s.numLines, 0, "more than %d fields", maxFields)
		}
		at := place{line: s.numLines, column: len(line) - len(rest) + 1}
		if len(rest) > 0 && rest[0] == '"' {
			line, rest, more, err = s.quoted(line, rest[1:], at)
			if err != nil {
				return err
			}
		} else {
			value := rest
			if i := bytes.IndexByte(rest, s.comma); i >= 0 {
				value, rest = rest[:i], rest[i+1:]
			} else {
				value, more = bytes.TrimSuffix(rest, []byte("\n")), false
			}
			if i := bytes.IndexByte(value, '"'); i >= 0 {
				return s.fail(at.line, at.column+i, `a quote within a field that does not begin with one: put the field into quotes and double those in it`)
			}
			s.text = append(s.text, value...)
		}
		at.end = len(s.text)
		s.fields = append(s.fields, at)
	}
	return nil
}

// quoted reads the rest of a field behind its first quote, over line ends if it
// must. It returns the line where the field ends, what follows the separator
// there, and whether there was one.
func (s *scanner) quoted(line, rest []byte, at place) (_, after []byte, more bool, err error) {
	for {
		i := bytes.IndexByte(rest, '"')
		if i < 0 {
			if s.text = append(s.text, rest...); len(s.text) > maxRecordBytes {
				s.lost = true
				return nil, nil, false, s.fail(at.line, at.column, "a quote is not closed within %d bytes", maxRecordBytes)
			}
			line, err = s.line()
			if errors.Is(err, io.EOF) {
				s.lost = true
				err = s.fail(at.line, at.column, "a quote is not closed")
			}
			if err != nil {
				return nil, nil, false, err
			}
			rest = line
			continue
		}
		s.text, rest = append(s.text, rest[:i]...), rest[i+1:]
		switch {
		case len(rest) > 0 && rest[0] == '"':
			s.text, rest = append(s.text, '"'), rest[1:]
		case len(rest) > 0 && rest[0] == s.comma:
			return line, rest[1:], true, nil
		case len(rest) == 0 || string(rest) == "\n":
			return line, nil, false, nil
		default:
			return nil, nil, false, s.fail(s.numLines, len(line)-len(rest)+1, "a closing quote is followed by %s: want a separator, the line's end or another quote", quote(bytes.TrimSuffix(rest[:1], []byte("\n"))))
		}
	}
}
