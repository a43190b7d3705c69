// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// written are the disks that jobs write files to.
func written(f *Facts) (out []Disk) {
	for _, d := range f.Disks {
		if d.Use != "shm" {
			out = append(out, d)
		}
	}
	return out
}

// otherwise says how to choose another directory for a use.
func otherwise(use string) string {
	if use == "tmp" {
		return "export TMPDIR=DIR  # a directory on another disk"
	}
	return "choose another directory: --out DIR for cohort train, --log-dir DIR for cohort run"
}

func judgeSpace(f *Facts) (out []Finding) {
	const least = 1 << 30
	seen := map[string]bool{}
	for _, d := range written(f) {
		// A small file system of its own, as in containers, may be meant so.
		if d.Size == 0 || seen[fmt.Sprint(d.Size, d.Free, d.FS)] {
			continue
		}
		seen[fmt.Sprint(d.Size, d.Free, d.FS)] = true
		level := Warning
		if d.Free < 16<<20 {
			level = Problem
		}
		switch {
		case d.Free < least:
			out = append(out, one(level, fmt.Sprintf("%s has %s left of %s", d.Path, size(d.Free), size(d.Size)), "du -xh -d 1 "+d.Path+" | sort -h  # and remove files; or "+otherwise(d.Use))...)
		case d.Inodes > 0 && d.FreeNodes < 1024:
			out = append(out, one(Problem, fmt.Sprintf("the file system of %s has room for %d more files", d.Path, d.FreeNodes), "df -i "+d.Path+"  # and remove small files; or "+otherwise(d.Use))...)
		}
	}
	return out
}

func judgeWrites(f *Facts) (out []Finding) {
	for _, d := range written(f) {
		switch {
		case d.Error != "" && (d.Size == 0 || d.Free >= 16<<20): // a full disk is told by its own check
			mend := otherwise(d.Use)
			if d.Error == "read-only file system" {
				mend = "mount -o remount,rw " + fingerprint.Quote(d.Path) + "  # or " + mend
			}
			out = append(out, one(Problem, fmt.Sprintf("%s cannot be written to: %s", d.Path, d.Error), mend)...)
		case d.SyncMS > 500:
			out = append(out, one(Warning, fmt.Sprintf("a small write to %s (%s) is durable after %.0f ms", d.Path, d.FS, d.SyncMS), otherwise(d.Use))...)
		}
	}
	return out
}

func judgeNoExec(f *Facts) []Finding {
	d := f.disk("tmp")
	if d == nil || !d.NoExec {
		return nil
	}
	return one(Warning, d.Path+" is mounted noexec", "mount -o remount,exec "+d.Path+"  # or export TMPDIR=DIR on another disk")
}
