// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A segment begins with a header of 32 bytes, little endian:
//
//	0  8  "cohortjl"
//	8  4  version
//	12 4  CRC-32C of the other bytes of the header
//	16 8  the journal's ID
//	24 8  LSN of the first entry
const (
	segmentMagic   = "cohortjl"
	segmentHeader  = 32
	segmentVersion = 1
	segmentSuffix  = ".log"
)

// segment is a file of the log.
type segment struct {
	path  string
	first uint64 // LSN of its first entry
}

func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, segmentSuffix) }

func makeSegmentHeader(id, first uint64) []byte {
	b := make([]byte, segmentHeader)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], segmentVersion)
	binary.LittleEndian.PutUint64(b[16:], id)
	binary.LittleEndian.PutUint64(b[24:], first)
	binary.LittleEndian.PutUint32(b[12:], headerSum(b))
	return b
}

func headerSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[16:segmentHeader])
}

// errTornHeader is the error of a segment whose header was not written whole.
var errTornHeader = errors.New("the header is not whole")

// checkSegmentHeader reads the header of a segment.
func (s segment) checkHeader(f io.ReaderAt, id uint64) error {
	b := make([]byte, segmentHeader)
	if err := readFull(f, b, 0); err == io.EOF || err == io.ErrUnexpectedEOF {
		return errTornHeader
	} else if err != nil {
		return failure(s.path, "cannot read the header", err)
	}
	switch {
	case string(b[:8]) != segmentMagic || binary.LittleEndian.Uint32(b[12:]) != headerSum(b):
		return errTornHeader
	case binary.LittleEndian.Uint32(b[8:]) != segmentVersion:
		return &Error{Kind: Foreign, Path: s.path, What: fmt.Sprintf("the segment has version %d, and this program knows version %d: use the program that wrote it", binary.LittleEndian.Uint32(b[8:]), segmentVersion)}
	case binary.LittleEndian.Uint64(b[16:]) != id:
		return &Error{Kind: Foreign, Path: s.path, What: fmt.Sprintf("the segment is of journal %016x, not of %016x: a file of another directory was put here; take it away", binary.LittleEndian.Uint64(b[16:]), id)}
	case binary.LittleEndian.Uint64(b[24:]) != s.first:
		return damaged(s.path, 0, "the segment begins with entry %d, not with the entry of its name: give the file its name again", binary.LittleEndian.Uint64(b[24:]))
	}
	return nil
}

// listSegments returns the segments of a directory by their first LSN.
func listSegments(dir string) ([]segment, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, failure(dir, "cannot list the log", err)
	}
	var found []segment
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), segmentSuffix)
		if !ok {
			continue
		}
		first, err := strconv.ParseUint(name, 10, 64)
		if err != nil || first == 0 {
			continue
		}
		found = append(found, segment{path: filepath.Join(dir, f.Name()), first: first})
	}
	slices.SortFunc(found, func(a, b segment) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	return found, nil
}

// scanned is what a scan of a segment found.
type scanned struct {
	last uint64 // LSN of the last good entry, first-1 for none
	end  int64  // offset behind it
	size int64  // of the file
	// lost is set if an entry behind the end says that more was acknowledged.
	lost bool
}

// scan reads the good entries of a segment in order. It ends at the first entry that is not good.
// The slice that fn gets is valid until fn returns.
func (s segment) scan(id uint64, fn func(lsn uint64, payload []byte) error) (scanned, error) {
	r := scanned{last: s.first - 1, end: segmentHeader}
	f, err := os.Open(s.path)
	if err != nil {
		return r, failure(s.path, "cannot open the segment", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return r, failure(s.path, "cannot read the segment", err)
	}
	r.size = st.Size()
	if err := s.checkHeader(f, id); err != nil {
		return r, err
	}
	rd := &window{f: f, size: r.size}
	for {
		head, err := rd.at(r.end, entryHeader)
		if err != nil {
			return r, failure(s.path, "cannot read the segment", err)
		}
		if head == nil {
			return r, nil
		}
		h := parseHead(head)
		n := entrySize(h.bytes)
		if h.lsn != r.last+1 || h.bytes > MaxEntry || r.end+n > r.size {
			break
		}
		entry, err := rd.at(r.end, int(n))
		if err != nil {
			return r, failure(s.path, "cannot read the segment", err)
		}
		if !h.good(entry) {
			break
		}
		if fn != nil {
			if err := fn(h.lsn, entry[entryHeader:entryHeader+h.bytes]); err != nil {
				return r, err
			}
		}
		r.last, r.end = h.lsn, r.end+n
	}
	r.lost, err = s.acknowledgedBehind(rd, r)
	return r, err
}

// acknowledgedBehind looks behind the last good entry for an entry that says that the log was
// acknowledged beyond it.
func (s segment) acknowledgedBehind(rd *window, r scanned) (bool, error) {
	for at := r.end + align; at+entryHeader <= r.size; at += align {
		head, err := rd.at(at, entryHeader)
		if err != nil {
			return false, failure(s.path, "cannot read the segment", err)
		}
		h := parseHead(head)
		n := entrySize(h.bytes)
		if h.lsn <= r.last || h.lsn > r.last+uint64(r.size) || h.acknowledged <= r.last || h.acknowledged >= h.lsn || at+n > r.size {
			continue
		}
		entry, err := rd.at(at, int(n))
		if err != nil {
			return false, failure(s.path, "cannot read the segment", err)
		}
		if h.good(entry) {
			return true, nil
		}
	}
	return false, nil
}

// window reads a file through a buffer.
type window struct {
	f    *os.File
	size int64
	from int64
	buf  []byte
}

const windowBytes = 1 << 20

// at returns n bytes at an offset, nil if the file ends before them. The slice is valid until the
// next call.
func (w *window) at(at int64, n int) ([]byte, error) {
	if at+int64(n) > w.size {
		return nil, nil
	}
	if at < w.from || at+int64(n) > w.from+int64(len(w.buf)) {
		want := min(int64(max(n, windowBytes)), w.size-at)
		if int64(cap(w.buf)) < want {
			w.buf = make([]byte, want)
		}
		w.buf, w.from = w.buf[:want], at
		if err := readFull(w.f, w.buf, at); err != nil {
			w.buf = nil
			return nil, err
		}
	}
	return w.buf[at-w.from:][:n], nil
}
