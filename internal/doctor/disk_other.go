// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package doctor

import (
	"os"
	"path/filepath"
)

// readDisk tries whether a directory can be written to.
func readDisk(use, path string) Disk {
	d := Disk{Use: use, Path: path}
	if abs, err := filepath.Abs(path); err == nil {
		d.Path = abs
	}
	if use == "shm" {
		d.Error = "there is none"
		return d
	}
	f, err := os.CreateTemp(d.Path, ".cohort-doctor-")
	if err != nil {
		d.Error = err.Error()
		return d
	}
	f.Close()
	os.Remove(f.Name())
	return d
}

func machine() string { return "" }

func oomKills() int { return 0 }
