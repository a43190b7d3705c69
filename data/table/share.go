// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"os"
)

// Share says which part of the rows one of several readers takes: reader Index of
// Count takes about the Index-th of Count equal parts of the bytes, in whole rows. All
// readers together take each row once, in the order of the files. The zero value takes
// all rows.
//
// Readers must tell each other a few numbers, such as the quotes in their parts, because
// a line end within quotes ends no row. Exchange sends own to all readers and returns
// what each of them has sent, in their order. Every reader calls it equally often.
type Share struct {
	Index, Count int
	Exchange     func(own []byte) (all [][]byte, err error)
}

func (s Share) isAll() bool { return s.Count <= 1 }

// tell sends a value to all readers and returns that of each of them.
func tell[T any](s Share, own T) ([]T, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("table: tell the other readers: %w", err)
	}
	texts, err := s.Exchange(text)
	if err != nil {
		return nil, fmt.Errorf("table: reader %d of %d: hear of the others: %w", s.Index, s.Count, err)
	}
	if len(texts) != s.Count {
		return nil, fmt.Errorf("table: reader %d heard of %d readers, want %d", s.Index, len(texts), s.Count)
	}
	all := make([]T, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, fmt.Errorf("table: what reader %d of %d says: %w", i, s.Count, err)
		}
	}
	return all, nil
}

// inTurn calls f of each reader with what f of the reader before has returned, and
// returns the last result to all.
func inTurn[T any](s Share, v T, f func(T) T) (T, error) {
	for i := range max(1, s.Count) {
		if i == s.Index {
			v = f(v)
		}
		if s.isAll() {
			break
		}
		all, err := tell(s, v)
		if err != nil {
			return v, err
		}
		v = all[i]
	}
	return v, nil
}

// failure is what a reader tells the others about an error of its own.
type failure struct {
	Text string
	Row  *RowError
}

func failed(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	errors.As(err, &f.Row)
	return f
}

// firstOf returns the error of the first part that has one, the same for all readers.
// A reader that was stopped returns why it was.
func firstOf(own error, all []*failure) error {
	if own != nil && (errors.Is(own, context.Canceled) || errors.Is(own, context.DeadlineExceeded)) {
		return own
	}
	for _, f := range all {
		switch {
		case f == nil:
		case f.Row != nil:
			return f.Row
		default:
			return errors.New(f.Text)
		}
	}
	return own
}

// piece is a part of a file: the rows that begin in [from, to).
type piece struct {
	path     string
	file     int // its number
	from, to int64
	size     int64
	// Of the bytes before from.
	quotes, lines int64
}

// pieces returns the pieces of a reader, and the bytes of all files. A compressed file
// is of one piece.
func (s Share) pieces(paths []string) (own []piece, total int64, err error) {
	sizes, whole := make([]int64, len(paths)), make([]bool, len(paths))
	for i, path := range paths {
		if sizes[i], whole[i], err = measureFile(path); err != nil {
			return nil, 0, fmt.Errorf("table: %w", err)
		}
		total += max(1, sizes[i]) // an empty file has a reader too, which reports it
	}
	part := func(i int) int64 { return total/int64(s.Count)*int64(i) + total%int64(s.Count)*int64(i)/int64(s.Count) }
	begin, end := part(s.Index), part(s.Index+1)
	at := int64(0)
	for i, path := range paths {
		size := max(1, sizes[i])
		p := piece{path: path, file: i, from: max(0, begin-at), to: min(size, end-at), size: size}
		if whole[i] {
			p.from, p.to = 0, size
			if at < begin || at >= end {
				p.to = 0
			}
		}
		if p.from < p.to {
			own = append(own, p)
		}
		at += size
	}
	return own, total, nil
}

// measureFile returns the size of a file, and whether it must be read from its start.
func measureFile(path string) (size int64, whole bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, false, err
	}
	magic := make([]byte, 2)
	n, err := io.ReadFull(f, magic)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return info.Size(), string(magic[:n]) == "\x1f\x8b", err
}

// count returns how many quotes and line ends a piece has.
func (p piece) count() (quotes, lines int64, err error) {
	f, err := os.Open(p.path)
	if err != nil {
		return 0, 0, fmt.Errorf("table: %w", err)
	}
	defer f.Close()
	r := io.NewSectionReader(f, p.from, p.to-p.from)
	block := make([]byte, 1<<20)
	for {
		n, err := r.Read(block)
		quotes += int64(bytes.Count(block[:n], []byte{'"'}))
		lines += int64(bytes.Count(block[:n], []byte{'\n'}))
		if err == io.EOF {
			return quotes, lines, nil
		}
		if err != nil {
			return 0, 0, fmt.Errorf("table: %s: %w", p.path, err)
		}
	}
}

// begins returns where the first row begins that begins at from or later, and how many
// lines are before it.
func (p piece) begins(f *os.File) (offset, lines int64, err error) {
	r := io.NewSectionReader(f, p.from-1, p.size-p.from+1)
	offset, lines = p.from-1, p.lines
	quoted, block := p.quotes%2 == 1, make([]byte, 4096)
	for first := true; ; first = false {
		n, err := r.Read(block)
		for i, c := range block[:n] {
			before := first && i == 0 // the byte before the piece, which is in the counts
			switch {
			case c == '"' && !before:
				quoted = !quoted
			case c == '\n':
				if !before {
					lines++
				}
				if !quoted {
					return offset + int64(i) + 1, lines, nil
				}
			}
		}
		offset += int64(n)
		if err == io.EOF {
			return p.size, lines, nil
		}
		if err != nil {
			return 0, 0, fmt.Errorf("table: %s: %w", p.path, err)
		}
	}
}

// news is what readers tell each other.
type news struct {
	Failure *failure
	// Before they read.
	Bytes         int64 // of all files
	File          int   // of the last piece, -1 if there is none
	Begins        bool  // whether that piece is the first of its file
	Quotes, Lines int64 // of that piece, if another reader has the next of the file
	// After they have read.
	Rows   int
	Rounds []int // see Reader
	First  []string
}

// locate finds the pieces of a reader, with what is before them. err is that of finding
// the files.
func (s Share) locate(paths []string, err error) ([]piece, error) {
	n := news{File: -1}
	var own []piece
	if err == nil {
		own, n.Bytes, err = s.pieces(paths)
	}
	if err == nil && len(own) > 0 {
		last := own[len(own)-1]
		n.File, n.Begins = last.file, last.from == 0
		if last.to < last.size {
			n.Quotes, n.Lines, err = last.count()
		}
	}
	n.Failure = failed(err)
	all, told := tell(s, n)
	if told != nil {
		return nil, cmp.Or(err, told)
	}
	var failures []*failure
	for _, other := range all {
		failures = append(failures, other.Failure)
	}
	if err := firstOf(err, failures); err != nil {
		return nil, err
	}
	for i, other := range all {
		if other.Bytes != all[0].Bytes {
			return nil, fmt.Errorf("table: reader 0 sees files of %d bytes, reader %d of %d: give all of them the same files", all[0].Bytes, i, other.Bytes)
		}
	}
	if len(own) > 0 && own[0].from > 0 {
		for i := s.Index - 1; i >= 0; i-- {
			if all[i].File < 0 {
				continue // a reader of nothing
			}
			own[0].quotes += all[i].Quotes
			own[0].lines += all[i].Lines
			if all[i].Begins {
				break
			}
		}
	}
	return own, nil
}

// ReadShare reads a share of the rows of a file or directory, as [Read] reads all of
// them. Every reader calls it with the same files. If a row of any part is wrong, all
// readers return the error of the first such row. A part may have no rows.
func ReadShare(ctx context.Context, path string, f Format, s Schema, share Share) (*Table, error) {
	if share.isAll() {
		return Read(ctx, path, f, s)
	}
	t := &Table{Schema: s, Name: path, share: share}
	if err := s.validateColumns(); err != nil {
		return nil, err // of all readers alike
	}
	source, err := open(path, f)
	if err != nil {
		source = &files{}
	}
	own, err := share.locate(source.paths, err)
	if err != nil {
		return nil, err
	}
	r := newReader(source, s)
	for _, p := range own {
		if err = t.readPiece(ctx, r, p); err != nil {
			break
		}
	}
	_ = r.Close()
	return t, t.join(r, err)
}

// readPiece reads the rows of a piece.
func (t *Table) readPiece(ctx context.Context, r *Reader, p piece) error {
	r.files.paths, r.failed = []string{p.path}, nil
	if err := r.advance(); err != nil {
		return err
	}
	if p.from > 0 {
		offset, lines, err := p.begins(r.files.open)
		if err != nil {
			return err
		}
		if err := r.files.text.moveTo(r.files.open, offset, int(lines)); err != nil {
			return err
		}
		r.files.first = false
	}
	if p.to < p.size {
		r.files.text.until = p.to
	}
	return t.take(ctx, r)
}

// join tells the other readers how the reading went, and hears of their rows.
func (t *Table) join(r *Reader, err error) error {
	all, told := tell(t.share, news{Rows: t.Len(), Failure: failed(err), Rounds: r.rounds, First: r.first})
	if told != nil {
		return cmp.Or(err, told)
	}
	var failures []*failure
	rounds, first := make([]int, len(r.rounds)), make([]string, len(r.first))
	for i, other := range all {
		failures = append(failures, other.Failure)
		if i < t.share.Index {
			t.first += other.Rows
		}
		t.total += other.Rows
		for j := range min(len(rounds), len(other.Rounds), len(other.First)) {
			if rounds[j] == 0 {
				first[j] = other.First[j]
			}
			rounds[j] += other.Rounds[j]
		}
	}
	if err := firstOf(err, failures); err != nil {
		return err
	}
	if t.total == 0 {
		return fmt.Errorf("table: %s has no rows", t.Name)
	}
	if t.total > maxRows {
		return fmt.Errorf("table: %s has more than %d rows: take a part of it", t.Name, maxRows)
	}
	r.rounds, r.first = rounds, first
	t.notes = r.Notes()
	return t.chain()
}

// chain continues the digest of the readers before, so that it is that of all rows.
func (t *Table) chain() (err error) {
	t.digest, err = inTurn(t.share, 0, func(digest uint64) uint64 {
		t.digest = digest
		for i := range t.Len() {
			t.mix(t.Row(i))
		}
		return t.digest
	})
	return err
}

// mix takes a row into the digest.
func (t *Table) mix(row Row) {
	t.bytes = row.append(t.bytes[:0])
	t.digest = crc64.Update(t.digest, digests, t.bytes)
}

// TableShare makes a share of the rows of [Generated.Table]. Every reader calls it.
func (g Generated) TableShare(share Share) (*Table, error) {
	if share.isAll() {
		return g.Table()
	}
	if err := g.Validate(); err != nil {
		return nil, err
	}
	t := g.table(g.Rows*share.Index/share.Count, g.Rows*(share.Index+1)/share.Count)
	t.share, t.first, t.total = share, g.Rows*share.Index/share.Count, g.Rows
	return t, t.chain()
}
