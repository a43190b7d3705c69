// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Mode says when an entry counts as acknowledged.
type Mode string

// The modes of a log.
const (
	// OS: when the operating system has the entry. It survives the end of the process (kill -9), not
	// that of the machine.
	OS Mode = "os"
	// Disk: when the disk has the entry.
	Disk Mode = "disk"
	// None: at once. There is no log: what came after the last snapshot ends with the process.
	None Mode = "none"
)

// Options say how a journal works, and whose it is.
type Options struct {
	Mode    Mode // zero: OS
	Server  int  // the server's index
	Servers int  // the number of servers, at least 1
	Job     string
	// SegmentBytes is the size at which the log goes on in a new file. Zero: 64 MiB.
	SegmentBytes int64
	// Keep is the number of full snapshots that stay. Zero: 2.
	Keep int
	// Around is called about every operation that changes the file system: tests slow or fail
	// operations. If it returns an error without calling do, the operation fails.
	Around func(op Op, do func() error) error
}

// identity is the content of journal.json.
type identity struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Job     string    `json:"job"`
	Server  int       `json:"server"`
	Servers int       `json:"servers"`
	Made    time.Time `json:"made"`
	Sum     string    `json:"crc32c"` // of the content without this field
}

const (
	identityFile = "journal.json"
	lockFile     = "lock"
	logDir       = "log"
	snapshotDir  = "snapshots"
)

// Journal is the durable memory of one server.
type Journal struct {
	dir  string
	o    Options
	id   uint64
	disk disk
	lock *os.File

	mu     sync.Mutex
	last   uint64   // LSN of the last entry
	tail   uint64   // LSN of the last entry of the segment that grows
	file   *os.File // the segment that grows, nil for none yet
	seg    segment
	end    int64
	buf    []byte
	broken error    // why no more can be appended
	behind []string // segments before it that are not durable, in mode OS
	cut    uint64
	fresh  bool
	stats  Stats
	saved  int64 // of the bytes of the log, those that the last snapshot made needless

	snapshots sync.Mutex // one snapshot at a time
	base      *Manifest  // the snapshot that the next one is a difference to
	depth     int        // of its chain
	recovered Recovered
}

// Stats are counts since the journal was opened.
type Stats struct {
	Entries, Writes, Bytes int64
	Syncs                  int64
}

// Open opens the journal of a directory, or makes one in an empty directory. It cuts a torn tail off
// the log.
func Open(dir string, o Options) (*Journal, error) {
	switch o.Mode {
	case "":
		o.Mode = OS
	case OS, Disk, None:
	default:
		return nil, &Error{Kind: Failed, Path: dir, What: fmt.Sprintf("there is no mode %q of a log: use os, disk or none", o.Mode)}
	}
	if o.Servers < 1 || o.Server < 0 || o.Server >= o.Servers {
		return nil, &Error{Kind: Failed, Path: dir, What: fmt.Sprintf("there is no server %d of %d: servers count from 0", o.Server, o.Servers)}
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 64 << 20
	}
	if o.Keep == 0 {
		o.Keep = 2
	}
	j := &Journal{dir: dir, o: o, disk: disk{around: o.Around, sync: true}}
	for _, d := range []string{dir, filepath.Join(dir, logDir), filepath.Join(dir, snapshotDir)} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			return nil, failure(d, "cannot make the directory", err)
		}
	}
	if err := j.lockDir(); err != nil {
		return nil, err
	}
	err := j.identify()
	if err == nil {
		err = j.clearStages()
	}
	if err == nil {
		err = j.openLog()
	}
	if err == nil {
		err = j.raise()
	}
	if err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

func (j *Journal) lockDir() error {
	path := filepath.Join(j.dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return failure(path, "cannot lock the directory", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return &Error{Kind: Busy, Path: j.dir, What: "another process has the directory: end that server first, or give each server a directory of its own", Err: err}
	}
	j.lock = f
	return nil
}

// identify reads who owns the directory, or writes it if there is nobody.
func (j *Journal) identify() error {
	path := filepath.Join(j.dir, identityFile)
	is, err := readIdentity(path)
	if errors.Is(err, fs.ErrNotExist) {
		return j.found(path)
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(is.ID, "%x", &j.id); err != nil {
		return damaged(path, 0, "%q is no ID of a journal", is.ID)
	}
	if is.Version != segmentVersion {
		return &Error{Kind: Foreign, Path: path, What: fmt.Sprintf("the journal has version %d, and this program knows version %d: use the program that wrote it", is.Version, segmentVersion)}
	}
	if is.Job != j.o.Job || is.Server != j.o.Server || is.Servers != j.o.Servers {
		return &Error{Kind: Foreign, Path: j.dir, What: fmt.Sprintf("the directory belongs to server %d of %d of job %q, and this is server %d of %d of job %q: give the right directory, or load its snapshots into the new servers",
			is.Server, is.Servers, is.Job, j.o.Server, j.o.Servers, j.o.Job)}
	}
	return nil
}

func readIdentity(path string) (is identity, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return is, failure(path, "cannot read whose directory this is", err)
	}
	if err := json.Unmarshal(b, &is); err != nil {
		return is, damaged(path, 0, "the file is not what was written (%v): restore it, or begin in an empty directory", err)
	}
	if is.Sum != is.sum() {
		return is, damaged(path, 0, "the file was changed: restore it, or begin in an empty directory")
	}
	return is, nil
}

// Whose reads which server of which job has a directory.
func Whose(dir string) (job string, server, servers int, err error) {
	is, err := readIdentity(filepath.Join(dir, identityFile))
	return is.Job, is.Server, is.Servers, err
}

// found makes the journal of an empty directory.
func (j *Journal) found(path string) error {
	segments, err := listSegments(filepath.Join(j.dir, logDir))
	if err != nil {
		return err
	}
	names, err := listSnapshots(j.dir)
	if err != nil {
		return err
	}
	if len(segments)+len(names) > 0 {
		return damaged(path, 0, "the file is missing, but the directory has %d segments and %d snapshots: restore the file, or begin in an empty directory", len(segments), len(names))
	}
	var b [8]byte
	rand.Read(b[:])
	j.id, j.fresh = binary.LittleEndian.Uint64(b[:]), true
	is := identity{Version: segmentVersion, ID: fmt.Sprintf("%016x", j.id), Job: j.o.Job, Server: j.o.Server, Servers: j.o.Servers, Made: time.Now().UTC().Truncate(time.Second)}
	is.Sum = is.sum()
	text, err := json.MarshalIndent(is, "", "  ")
	if err == nil {
		err = j.disk.replaceFile(path, append(text, '\n'))
	}
	if err != nil {
		return failure(path, "cannot make the journal", err)
	}
	return nil
}

func (is identity) sum() string {
	is.Sum = ""
	b, _ := json.Marshal(is)
	return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli))
}

// openLog finds the end of the log.
func (j *Journal) openLog() error {
	for {
		segments, err := listSegments(filepath.Join(j.dir, logDir))
		if err != nil || len(segments) == 0 {
			return err
		}
		s := segments[len(segments)-1]
		r, err := s.scan(j.id, nil)
		if err == errTornHeader {
			if r.size > segmentHeader {
				return damaged(s.path, 0, "the header of the segment is damaged: restore the file from a copy")
			}
			// The process ended while it made the segment: nothing was in it.
			if err := j.disk.remove(s.path); err != nil {
				return failure(s.path, "cannot remove the torn segment", err)
			}
			continue
		}
		if err != nil {
			return err
		}
		if r.lost {
			return damaged(s.path, r.last+1, "the entry was acknowledged and is damaged at byte %d: restore the file from a copy", r.end)
		}
		f, err := os.OpenFile(s.path, os.O_RDWR, 0)
		if err != nil {
			return failure(s.path, "cannot open the segment", err)
		}
		if r.end < r.size {
			err = j.disk.truncate(f, r.end)
			if err == nil {
				err = j.disk.flush(f)
			}
			if err != nil {
				f.Close()
				return failure(s.path, "cannot cut the torn tail off", err)
			}
			j.cut = uint64(r.size - r.end)
		}
		j.seg, j.file, j.end, j.last, j.tail = s, f, r.end, r.last, r.last
		return nil
	}
}

// raise takes the last LSN from the newest snapshot if its rows are newer than the log. They are if
// there was no log.
func (j *Journal) raise() error {
	names, err := listSnapshots(j.dir)
	for i := len(names) - 1; i >= 0; i-- {
		if m, err := readManifest(j.dir, names[i]); err == nil {
			j.last = max(j.last, m.End)
			break
		}
	}
	return err
}

// Dir returns the directory.
func (j *Journal) Dir() string { return j.dir }

// ID returns the random number that the journal got when its directory was empty. A client that
// knows another ID meets a server that has forgotten.
func (j *Journal) ID() uint64 { return j.id }

// Fresh reports whether Open made the journal in an empty directory.
func (j *Journal) Fresh() bool { return j.fresh }

// TornBytes returns how many bytes of a torn tail Open has cut off.
func (j *Journal) TornBytes() uint64 { return j.cut }

// Last returns the LSN of the last entry, 0 for none.
func (j *Journal) Last() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

// Stats returns the counts since the journal was opened.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.stats
}

// Unsaved returns how many bytes the log has behind the last snapshot: it grows by every entry, and a
// server reads so much when it is started.
func (j *Journal) Unsaved() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.stats.Bytes - j.saved
}

// countUnsaved counts the bytes of the log behind a snapshot that was recovered.
func (j *Journal) countUnsaved(at uint64) error {
	segments, err := listSegments(filepath.Join(j.dir, logDir))
	if err != nil {
		return err
	}
	n := int64(0)
	for i, s := range segments {
		if i+1 < len(segments) && segments[i+1].first <= at+1 || i+1 == len(segments) && at >= j.Last() {
			continue // all its entries come before
		}
		st, err := os.Stat(s.path)
		if err != nil {
			return failure(s.path, "cannot read the size of the segment", err)
		}
		n += st.Size()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.saved = j.stats.Bytes - n
	return nil
}

// Close ends the use of the directory. It makes the log durable first.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if j.file != nil {
		if j.broken == nil {
			if serr := j.disk.flush(j.file); serr != nil {
				err = failure(j.seg.path, "cannot make the log durable", serr)
			}
		}
		j.file.Close()
		j.file = nil
	}
	if j.lock != nil {
		j.lock.Close()
		j.lock = nil
	}
	j.broken = &Error{Kind: Closed, Path: j.dir, What: "the journal was closed"}
	return err
}
