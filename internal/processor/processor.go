// SPDX-License-Identifier: Apache-2.0

// Package processor reads what Linux tells about the processors of a machine and about the share
// of their time that a process gets.
//
// [Read] reads /proc/cpuinfo. [Groups] lists the cgroups of this process, and [Quota] reads the
// limit of their time. All of them read files below a root, which is "/" but in tests. What cannot
// be read is left out. Nothing is kept between calls.
package processor

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxText bounds what is read of a file: /proc/cpuinfo of a thousand processors has 2 MB.
const maxText = 16 << 20

// Info is what /proc/cpuinfo says.
type Info struct {
	Model string // of the first processor, "" if it is not told
	// Features are all those of the first processor, as the system names them.
	Features []string
	Online   int // processors of the machine
	Cores    int // cores of the machine; 0 if it is not told, as on arm64
}

// Read reads proc/cpuinfo below root.
func Read(root string) (Info, error) {
	f, err := os.Open(filepath.Join(root, "proc/cpuinfo"))
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	return parse(f)
}

func parse(r io.Reader) (c Info, err error) {
	cores := map[[2]string]bool{}
	physical, part := "", ""
	lines := bufio.NewScanner(io.LimitReader(r, maxText))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "processor":
			c.Online++
		case "model name", "cpu model", "Model":
			if c.Model == "" {
				c.Model = value
			}
		case "CPU part":
			if part == "" {
				part = value
			}
		case "flags", "Features":
			if c.Features == nil {
				c.Features = strings.Fields(value)
			}
		case "physical id":
			physical = value
		case "core id":
			cores[[2]string{physical, value}] = true
		}
	}
	if c.Model == "" && part != "" { // arm64 has no name of the model
		c.Model = "part " + part
	}
	c.Cores = len(cores)
	return c, lines.Err()
}

// Groups returns the directories of this process's cgroup for a controller such as "cpu", the
// innermost first, up to the mount. It knows both versions of cgroups.
func Groups(root, controller string) []string {
	var dirs []string
	for line := range strings.Lines(text(filepath.Join(root, "proc/self/cgroup"))) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] != "" && !slices.Contains(strings.Split(parts[1], ","), controller) {
			continue
		}
		mounts := []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		if parts[1] != "" { // version 1: each controller has a tree of its own
			mounts = []string{"sys/fs/cgroup/" + controller, "sys/fs/cgroup/" + parts[1]}
		}
		for _, mount := range mounts {
			for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
				full := filepath.Join(root, mount, dir)
				if st, err := os.Stat(full); err == nil && st.IsDir() && !slices.Contains(dirs, full) {
					dirs = append(dirs, full)
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return dirs
}

// Quota returns how many processors' time the cgroup of this process, or one above it, may use,
// and the file that says so; 0 for no limit.
func Quota(root string) (processors float64, file string) {
	for _, dir := range Groups(root, "cpu") {
		path := filepath.Join(dir, "cpu.max")
		words := strings.Fields(text(path))
		if len(words) == 0 {
			path = filepath.Join(dir, "cpu.cfs_quota_us")
			words = []string{strings.TrimSpace(text(path)), strings.TrimSpace(text(filepath.Join(dir, "cpu.cfs_period_us")))}
		}
		if len(words) < 2 {
			continue
		}
		quota, err1 := strconv.ParseFloat(words[0], 64)
		period, err2 := strconv.ParseFloat(words[1], 64)
		if err1 == nil && err2 == nil && quota > 0 && period > 0 && (processors == 0 || quota/period < processors) {
			processors, file = quota/period, path
		}
	}
	return processors, file
}

// text returns the beginning of a file, "" if it cannot be read.
func text(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return ""
	}
	return string(b)
}
