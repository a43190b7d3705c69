// SPDX-License-Identifier: Apache-2.0

package journal

import "path/filepath"

// Replay calls fn with the entries from an LSN on, in order. A segment with a damaged entry, or a
// missing segment, is an error of kind [Damaged] before fn sees any later entry. The bytes are valid
// until fn returns. Replay must not run beside Append.
func (j *Journal) Replay(from uint64, fn func(lsn uint64, entry []byte) error) error {
	segments, err := listSegments(filepath.Join(j.dir, logDir))
	if err != nil {
		return err
	}
	from = max(from, 1)
	last := j.Last()
	next := from
	for i, s := range segments {
		if i+1 < len(segments) && segments[i+1].first <= from {
			continue // all its entries come before
		}
		if s.first > next {
			return missing(s.path, next, s.first-1)
		}
		r, err := s.scan(j.id, func(lsn uint64, payload []byte) error {
			if lsn < from {
				return nil
			}
			next = lsn + 1
			return fn(lsn, payload)
		})
		if err == errTornHeader {
			return damaged(s.path, 0, "the header of the segment is damaged: restore the file from a copy")
		}
		if err != nil {
			return err
		}
		if r.end != r.size {
			return damaged(s.path, r.last+1, "the entry is damaged at byte %d: restore the file from a copy", r.end)
		}
	}
	if next <= last {
		return missing(filepath.Join(j.dir, logDir), next, last)
	}
	return nil
}

func missing(path string, from, to uint64) error {
	return damaged(path, from, "entries %d to %d are missing from the log: restore the segment that begins there from a copy", from, to)
}
