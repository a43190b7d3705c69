// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// plain is a file of JSON, or the copy of one.
type plain struct {
	*indexed
	lines bool // a record is a line
}

// openPlain opens a file of JSON where it lies.
func openPlain(ctx context.Context, path, kind string, find framing, c *cache) (source, error) {
	x, err := openIndexed(ctx, path, kind, find, c)
	if err != nil {
		return nil, err
	}
	return &plain{x, kind == kindLines}, nil
}

func openLines(ctx context.Context, path string, _ Options, c *cache) (source, error) {
	return openPlain(ctx, path, kindLines, frameLines, c)
}

// openJSON opens a list of objects, or lines that are called .json.
func openJSON(ctx context.Context, path string, _ Options, c *cache) (source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	head := make([]byte, 4096)
	n, err := io.ReadFull(f, head)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, unreadable(path, err)
	}
	kind, find := kindLines, frameLines
	if trimmed := bytes.TrimLeft(bytes.TrimPrefix(head[:n], []byte(byteOrderMark)), " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		kind, find = kindList, frameList
	}
	return openPlain(ctx, path, kind, find, c)
}

func (s *plain) read(i int, want func(string) Want) (Record, error) {
	buf := s.bytes.Get().(*[]byte)
	defer s.bytes.Put(buf)
	text, err := s.text(i, buf)
	if err != nil {
		return nil, err
	}
	return parseRecord(text, want)
}

// text returns the bytes of a record. They are valid until buf is used again.
func (s *plain) text(i int, buf *[]byte) ([]byte, error) {
	from, to, err := s.span(i)
	if err != nil {
		return nil, err
	}
	changed := errors.New("the file has changed since it was opened: leave it as it is while it is read")
	to = min(to, from+maxRecord+1) // what is left are spaces
	before := int64(0)             // a byte that tells whether a line begins there
	if s.lines && from > 0 {
		before = 1
	}
	n := int(to - from + before)
	if cap(*buf) < n {
		*buf = make([]byte, n+n/4)
	}
	b := (*buf)[:n]
	if _, err := s.file.ReadAt(b, from-before); errors.Is(err, io.EOF) {
		return nil, changed
	} else if err != nil {
		return nil, err
	}
	if before > 0 {
		if b[0] != '\n' && !(from == int64(len(byteOrderMark)) && b[0] == byteOrderMark[2]) {
			return nil, changed
		}
		b = b[1:]
	}
	if s.lines {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[:i]
		}
	} else {
		b = bytes.TrimRight(b, " \t\r\n")
		if n := len(b); n > 0 && (b[n-1] == ',' || b[n-1] == ']') {
			b = b[:n-1]
		}
	}
	return b, nil
}

// line counts the lines before a record.
func (s *plain) line(i int) int {
	if !s.lines {
		return 0
	}
	if !s.index.blanks {
		return i + 1
	}
	from, _, err := s.index.span(i)
	if err != nil {
		return 0
	}
	r, n := bufio.NewReaderSize(io.NewSectionReader(s.file, 0, from), 256<<10), 1
	for {
		part, err := r.ReadSlice('\n')
		if bytes.HasSuffix(part, []byte{'\n'}) {
			n++
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return n
		}
	}
}

// frameList finds the elements of a list of objects.
func frameList(r *frameReader, emit func(place int64) error) (end int64, err error) {
	l := &lister{r: r}
	if mark, err := r.r.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		r.r.Discard(len(mark))
		l.pos = int64(len(mark))
	}
	if c, err := l.next(); err != nil || c != '[' {
		return 0, l.fail("want a list of objects, [{…}, …]", err)
	}
	for num := 0; ; num++ {
		c, err := l.next()
		switch {
		case err == nil && c == ']':
			return l.pos, l.atEnd()
		case num > 0 && (err != nil || c != ','):
			return 0, l.fail(fmt.Sprintf("want , or ] after element %d", num), err)
		case num > 0:
			c, err = l.next()
		}
		if err != nil || c != '{' {
			return 0, l.fail(fmt.Sprintf("element %d of the list is no object, {…}", num+1), err)
		}
		if err := emit(l.pos - 1); err != nil {
			return 0, err
		}
		if err := l.skipObject(num); err != nil {
			return 0, err
		}
	}
}

// lister goes through a list.
type lister struct {
	r   *frameReader
	pos int64
}

func (l *lister) fail(what string, err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err != nil {
		what += "; the file ends too early"
	}
	return &Error{Detail: fmt.Sprintf("no list of JSON objects at byte %d: %s", l.pos, what)}
}

// next returns the next byte that is no space.
func (l *lister) next() (byte, error) {
	for {
		c, err := l.r.r.ReadByte()
		if err != nil {
			return 0, err
		}
		if l.pos++; !isSpace(c) {
			return c, nil
		}
	}
}

// skipObject goes behind the end of an object, whose beginning was read.
func (l *lister) skipObject(num int) error {
	begin, depth, within := l.pos, 1, false
	for depth > 0 {
		c, err := l.r.r.ReadByte()
		if err != nil {
			return l.fail(fmt.Sprintf("element %d has no end", num+1), err)
		}
		l.pos++
		switch {
		case within && c == '\\':
			if _, err := l.r.r.ReadByte(); err != nil {
				return l.fail(fmt.Sprintf("element %d has no end", num+1), err)
			}
			l.pos++
		case c == '"':
			within = !within
		case within:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if l.pos-begin > maxRecord {
			return &Error{Record: num + 1, Detail: fmt.Sprintf("it has more than %d MiB: a record is at most that long", maxRecord>>20)}
		}
	}
	return nil
}

// atEnd fails if there is more than spaces.
func (l *lister) atEnd() error {
	c, err := l.next()
	if errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}
	return &Error{Detail: fmt.Sprintf("there is more after the list (%q at byte %d)", c, l.pos)}
}
