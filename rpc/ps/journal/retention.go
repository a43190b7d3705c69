// SPDX-License-Identifier: Apache-2.0

package journal

import "path/filepath"

// retain removes the snapshots and the segments that nothing needs any more. previous is the snapshot
// before the newest: the log reaches back to it, so that a damaged newest snapshot loses nothing.
func (j *Journal) retain(previous *Manifest) error {
	names, err := listSnapshots(j.dir)
	if err != nil {
		return err
	}
	fulls, oldest := 0, uint64(0)
	for i := len(names) - 1; i >= 0; i-- {
		m, err := readManifest(j.dir, names[i])
		if err != nil || !m.Full {
			continue
		}
		if fulls++; fulls == j.o.Keep {
			oldest = m.At
		}
	}
	for _, at := range names {
		if at >= oldest {
			break
		}
		path := filepath.Join(j.dir, snapshotDir, snapshotName(at))
		if err := j.disk.remove(path); err != nil {
			return failure(path, "cannot remove an old snapshot", err)
		}
	}
	if previous == nil {
		return nil
	}
	segments, err := listSegments(filepath.Join(j.dir, logDir))
	if err != nil {
		return err
	}
	for i := 0; i+1 < len(segments) && segments[i+1].first <= previous.At+1; i++ {
		if err := j.disk.remove(segments[i].path); err != nil {
			return failure(segments[i].path, "cannot remove an old segment of the log", err)
		}
	}
	return nil
}
