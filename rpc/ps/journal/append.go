// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writeBytes is how much of a call goes into one write.
const writeBytes = 4 << 20

// Append appends entries to the log and returns the LSN of the first; the others follow. It returns
// when the entries are acknowledged by the journal's [Mode]. After an error none of them is in the
// log. If the error is [ErrFull], later calls can succeed again.
func (j *Journal) Append(entries ...[]byte) (first uint64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return 0, j.broken
	}
	first = j.last + 1
	if len(entries) == 0 {
		return first, nil
	}
	for _, e := range entries {
		if len(e) > MaxEntry {
			return 0, &Error{Kind: Failed, Path: j.dir, What: fmt.Sprintf("an entry has %d bytes, and %d are allowed: push fewer rows in one request", len(e), MaxEntry)}
		}
	}
	if j.o.Mode == None {
		j.last += uint64(len(entries))
		j.stats.Entries += int64(len(entries))
		return first, nil
	}
	if err := j.grow(); err != nil {
		return 0, err
	}
	at := j.end
	if err := j.write(first, entries); err != nil {
		return 0, j.takeBack(at, err)
	}
	j.last += uint64(len(entries))
	j.tail = j.last
	j.stats.Entries += int64(len(entries))
	j.stats.Bytes += j.end - at
	return first, nil
}

// write writes entries behind the end of the segment.
func (j *Journal) write(first uint64, entries [][]byte) error {
	flush := func() error {
		err := j.disk.writeAt(j.file, j.buf, j.end)
		j.end += int64(len(j.buf))
		j.buf = j.buf[:0]
		j.stats.Writes++
		return err
	}
	j.buf = j.buf[:0]
	for i, e := range entries {
		j.buf = appendEntry(j.buf, first+uint64(i), first-1, e)
		if len(j.buf) >= writeBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(j.buf) > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	if cap(j.buf) > 4*writeBytes {
		j.buf = nil
	}
	if j.o.Mode != Disk {
		return nil
	}
	j.stats.Syncs++
	return j.disk.flush(j.file)
}

// takeBack cuts off what a failed call has written. If the bytes cannot be cut off, nothing more is
// appended: an entry that was refused must not come back.
func (j *Journal) takeBack(at int64, cause error) error {
	err := failure(j.seg.path, "the log cannot be written: make room on the disk, and push again", cause)
	if err.Kind != Full {
		err.What = "the log cannot be written"
	}
	j.end = at
	if terr := j.disk.truncate(j.file, at); terr != nil {
		j.broken = &Error{Kind: Failed, Path: j.seg.path, What: fmt.Sprintf("a failed write (%v) cannot be cut off the log: mend the disk, and start the server again", cause), Err: terr}
		return j.broken
	}
	if j.o.Mode == Disk {
		if serr := j.disk.flush(j.file); serr != nil {
			j.broken = &Error{Kind: Failed, Path: j.seg.path, What: fmt.Sprintf("a failed write (%v) cannot be cut off the log: mend the disk, and start the server again", cause), Err: serr}
			return j.broken
		}
	}
	return err
}

// grow makes sure that there is a segment with room.
func (j *Journal) grow() error {
	if j.file != nil && j.end < j.o.SegmentBytes && j.last == j.tail {
		return nil
	}
	s := segment{first: j.last + 1}
	s.path = filepath.Join(j.dir, logDir, segmentName(s.first))
	if j.file != nil && s.path == j.seg.path {
		return nil // it has no entry yet
	}
	// In mode os nothing waits for the disk: beside a snapshot it can be busy for seconds. Sync does
	// it when a snapshot needs it.
	durable := j.o.Mode == Disk
	if j.file != nil && durable {
		if err := j.disk.flush(j.file); err != nil {
			return failure(j.seg.path, "the log cannot be made durable", err)
		}
	}
	f, err := j.disk.create(s.path)
	if err != nil {
		return failure(s.path, "a new segment of the log cannot be made", err)
	}
	err = j.disk.writeAt(f, makeSegmentHeader(j.id, s.first), 0)
	if err == nil && durable {
		err = j.disk.flush(f)
	}
	if err == nil && durable {
		err = j.disk.flushDir(filepath.Dir(s.path))
	}
	if err != nil {
		f.Close()
		cause := failure(s.path, "a new segment of the log cannot be made: make room on the disk, and push again", err)
		if err := j.disk.remove(s.path); err != nil {
			j.broken = failure(s.path, "a segment that could not be written cannot be removed: mend the disk, and start the server again", err)
			return j.broken
		}
		return cause
	}
	if j.file != nil {
		j.file.Close()
		if !durable {
			j.behind = append(j.behind, j.seg.path)
		}
	}
	j.file, j.seg, j.end, j.tail = f, s, segmentHeader, j.last
	return nil
}

// Sync makes all that was appended before durable, in every mode. Calls of Append do not wait for it.
func (j *Journal) Sync() error {
	j.mu.Lock()
	if j.broken != nil || j.file == nil {
		err := j.broken
		j.mu.Unlock()
		return err
	}
	paths := append(j.behind, j.seg.path)
	j.behind = nil
	j.stats.Syncs++
	j.mu.Unlock()
	for i, path := range paths {
		if err := j.syncFile(path); err != nil {
			j.mu.Lock()
			j.behind = append(paths[i:len(paths)-1:len(paths)-1], j.behind...)
			j.mu.Unlock()
			return failure(path, "the log cannot be made durable", err)
		}
	}
	if err := j.disk.flushDir(filepath.Join(j.dir, logDir)); err != nil {
		return failure(j.dir, "the log cannot be made durable", err)
	}
	return nil
}

// syncFile makes a segment durable. One that retention has removed needs nothing.
func (j *Journal) syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return j.disk.flush(f)
}
