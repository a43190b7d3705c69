// SPDX-License-Identifier: Apache-2.0

package records

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

// shard is a tar file of WebDataset: members next to each other whose names are alike up to the first
// dot are one record.
type shard struct{ *indexed }

func openTar(ctx context.Context, path string, _ Options, c *cache) (source, error) {
	x, err := openIndexed(ctx, path, kindTar, frameTar, c)
	if err != nil {
		return nil, err
	}
	return &shard{x}, nil
}

// openPackedTar opens a tar file that is compressed.
func openPackedTar(ctx context.Context, path string, _ Options, c *cache) (source, error) {
	const kind = "packed " + kindTar
	x, err := openCopy(ctx, path, kind, kind, frameTar, c, unpacker(path))
	if err != nil {
		return nil, err
	}
	return &shard{x}, nil
}

func (s *shard) line(int) int { return 0 }

// keyField has the name of a record, as in WebDataset.
const keyField = "__key__"

func (s *shard) read(i int, want func(string) Want) (Record, error) {
	from, to, err := s.span(i)
	if err != nil {
		return nil, err
	}
	if want == nil {
		want = func(string) Want { return Take }
	}
	r, members := tar.NewReader(io.NewSectionReader(s.file, from, to-from)), Record{}
	for key := ""; ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && key != "" {
			return members, nil
		} else if err != nil {
			return nil, fmt.Errorf("its members cannot be read: %w; leave the file as it is while it is read", err)
		}
		name, field, ok := memberOf(h)
		if !ok {
			continue
		}
		if key == "" {
			if key = name; want(keyField) != Leave {
				members[keyField] = key
			}
		}
		if err := s.member(r, field, h, want, members); err != nil {
			return nil, err
		}
	}
}

// member adds what a member of a record has.
func (s *shard) member(r io.Reader, field string, h *tar.Header, want func(string) Want, members Record) error {
	put := func(field string, v any) error {
		if _, twice := members[field]; twice {
			return &FieldError{field, fmt.Sprintf("stands twice, the second time in the member %s", h.Name)}
		}
		members[field] = v
		return nil
	}
	kind := field[strings.LastIndexByte(field, '.')+1:]
	object := kind == "json" || kind == "jsn"
	if !object && want(field) == Leave {
		return nil
	}
	buf := s.bytes.Get().(*[]byte)
	defer s.bytes.Put(buf)
	if int64(cap(*buf)) < h.Size {
		*buf = make([]byte, h.Size)
	}
	text := (*buf)[:h.Size]
	if _, err := io.ReadFull(r, text); err != nil {
		return fmt.Errorf("the member %s cannot be read: %w", h.Name, err)
	}
	switch kind {
	case "json", "jsn":
		return putObject(field, text, want, put)
	case "txt", "text", "transcript", "caption":
		if !utf8.Valid(text) {
			return &FieldError{field, fmt.Sprintf("the member %s is no UTF-8", h.Name)}
		}
		return put(field, string(text))
	case "cls", "cls2", "class", "count", "index", "inx", "id":
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return &FieldError{field, fmt.Sprintf("the member %s has %.40q, want a whole number", h.Name, text)}
		}
		return put(field, n)
	}
	return put(field, append([]byte{}, text...))
}

// putObject puts the fields of the object of a record among its other fields. A value that is no object
// is a field of its own.
func putObject(field string, text []byte, want func(string) Want, put func(string, any) error) error {
	if len(text) > maxRecord {
		return &FieldError{field, fmt.Sprintf("has more than %d MiB", maxRecord>>20)}
	}
	r, err := parseRecord(text, want)
	if err != nil {
		return &FieldError{field, err.Error()}
	}
	for _, name := range r.Fields() {
		if err := put(name, r[name]); err != nil {
			return err
		}
	}
	return nil
}

// memberOf divides the name of a member into that of the record and that of the field; members that
// are no files, or without a field, belong to no record.
func memberOf(h *tar.Header) (key, field string, ok bool) {
	dir, base := path.Split(h.Name)
	key, field, ok = strings.Cut(base, ".")
	first, _, _ := strings.Cut(h.Name, "/")
	about := len(first) > 3 && strings.HasPrefix(first, "__") && strings.HasSuffix(first, "__") // the whole shard
	if h.Typeflag != tar.TypeReg || !ok || key == "" || field == "" || about {
		return "", "", false
	}
	return dir + key, strings.ToLower(field), true
}

// frameTar finds the first members of records.
func frameTar(r *frameReader, emit func(place int64) error) (end int64, err error) {
	at := &counter{r: r.r}
	t := tar.NewReader(at)
	last, size := "", int64(0)
	for num := 0; ; {
		begin := padded(at.n) // what stands between is read by Next
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return begin, afterEnd(at, begin)
		}
		var own *Error
		if errors.As(err, &own) || r.ctx.Err() != nil {
			return 0, err
		} else if err != nil {
			return 0, &Error{Detail: fmt.Sprintf("is no tar file, or a damaged one, at byte %d: %v", begin, err)}
		}
		if isSparse(h) {
			return 0, &Error{Detail: fmt.Sprintf("the member %s has holes (a sparse file), which WebDataset does not know: pack it without --sparse", h.Name)}
		}
		if key, _, ok := memberOf(h); ok {
			if key != last || num == 0 {
				last, size = key, 0
				num++
				if err := emit(begin); err != nil {
					return 0, err
				}
			}
			if size += h.Size; size > maxRecord {
				return 0, &Error{Record: num, Detail: fmt.Sprintf("with the member %s it has more than %d MiB: a record is at most that long", h.Name, maxRecord>>20)}
			}
		}
		if _, err := io.Copy(io.Discard, t); err != nil {
			return 0, &Error{Detail: fmt.Sprintf("the member %s is cut off: %v", h.Name, err)}
		}
	}
}

// isSparse reports whether a member has holes: a few bytes may be a file of any size.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// afterEnd fails if a tar file has no end, which is zeros, or more than zeros after it.
func afterEnd(at *counter, end int64) error {
	if at.text > end || at.n < end+512 {
		return &Error{Detail: fmt.Sprintf("is cut off at byte %d: the empty blocks at the end of a tar file are missing", at.n)}
	}
	if _, err := io.Copy(io.Discard, at); err != nil {
		return err
	}
	if at.text > end {
		return &Error{Detail: fmt.Sprintf("there is more after the end at byte %d: tar files are joined by tar --concatenate, not by cat; or leave them apart", end)}
	}
	return nil
}

// counter counts what is read of a tar file.
type counter struct {
	r    io.Reader
	n    int64
	text int64 // where the last byte ends that is not zero
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if text := len(bytes.TrimRight(b[:n], "\x00")); text > 0 {
		c.text = c.n + int64(text)
	}
	c.n += int64(n)
	return n, err
}

// padded is where the block of 512 bytes ends in which a place is.
func padded(n int64) int64 { return (n + 511) &^ 511 }
