// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// none is a number from which on a limit is none: cgroups of version 1 say the
// largest number of pages.
const none = 1 << 60

func limits(proc, mount string) []Limit {
	machine := numbers(filepath.Join(proc, "meminfo"))
	swap := machine["SwapFree:"] << 10
	var all []Limit
	if dir, file := Cgroup(filepath.Join(proc, "self/cgroup"), mount); dir != "" {
		all = append(all, cgroupLimits(dir, file, mount, swap)...)
	}
	status := numbers(filepath.Join(proc, "self/status"))
	for _, r := range []struct {
		resource int
		used     string
		source   string
	}{
		{unix.RLIMIT_AS, "VmSize:", "the limit of a process's address space (ulimit -v)"},
		{unix.RLIMIT_DATA, "VmData:", "the limit of a process's data (ulimit -d)"},
	} {
		var l unix.Rlimit
		if unix.Getrlimit(r.resource, &l) == nil && l.Cur < none {
			all = append(all, Limit{Bytes: l.Cur, Used: status[r.used] << 10, Source: r.source, Mapped: r.resource == unix.RLIMIT_AS})
		}
	}
	if total := machine["MemTotal:"] << 10; total > 0 {
		all = append(all, Limit{Bytes: total + machine["SwapTotal:"]<<10, Source: "the memory of the machine", Scope: "machine"})
	}
	return all
}

// cgroupLimits returns the limits of a cgroup and of those above it.
func cgroupLimits(dir, file, mount string, swap uint64) []Limit {
	root := mount
	if file == "memory.limit_in_bytes" {
		root = filepath.Join(mount, "memory")
	}
	var all []Limit
	for ; ; dir = filepath.Dir(dir) {
		if l, ok := cgroupLimit(dir, file, swap); ok {
			l.Scope = dir
			l.Source = fmt.Sprintf("%s of the cgroup %s", file, filepath.Join("/", strings.TrimPrefix(dir, root)))
			all = append(all, l)
		}
		if dir == root || len(dir) <= len(root) {
			return all
		}
	}
}

// cgroupLimit reads the limit of one cgroup. What its processes can swap out counts as
// room; so does what only caches a file.
func cgroupLimit(dir, file string, swap uint64) (Limit, bool) {
	most, ok := number(filepath.Join(dir, file))
	if !ok || most >= none {
		return Limit{}, false
	}
	stat := numbers(filepath.Join(dir, "memory.stat"))
	usage, more, cached := "memory.current", "memory.swap.max", stat["inactive_file"]+stat["active_file"]
	if file == "memory.limit_in_bytes" {
		usage, more, cached = "memory.usage_in_bytes", "memory.memsw.limit_in_bytes", stat["total_inactive_file"]+stat["total_active_file"]
	}
	if bound, ok := number(filepath.Join(dir, more)); ok && more == "memory.memsw.limit_in_bytes" {
		bound -= min(bound, most) // which is that of memory and swap together
		swap = min(swap, bound)
	} else if ok {
		swap = min(swap, bound)
	}
	used, _ := number(filepath.Join(dir, usage))
	return Limit{Bytes: most + swap, Used: used - min(used, cached)}, true
}

// Cgroup finds the cgroup that limits this process's memory in the file that lists its
// cgroups, /proc/self/cgroup, below the directory where cgroups are mounted. It returns
// the cgroup's directory, and the name of the file with the limit; both are empty if
// there is none.
func Cgroup(list, mount string) (dir, file string) {
	b, err := os.ReadFile(list)
	if err != nil {
		return "", ""
	}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		// Inside a container, the path may be the host's, and the mount may be the group.
		for _, path := range []string{parts[2], "/"} {
			for _, v := range []struct{ ok, dir, file, kills string }{
				{"memory", filepath.Join(mount, "memory", path), "memory.limit_in_bytes", "memory.oom_control"},
				{"", filepath.Join(mount, path), "memory.max", "memory.events"},
			} {
				if v.ok != parts[1] {
					continue
				}
				if _, err := os.Stat(filepath.Join(v.dir, v.kills)); err == nil {
					return v.dir, v.file
				}
			}
		}
	}
	return "", ""
}

// number reads a file of one number; "max" is no limit.
func number(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	text := string(bytes.TrimSpace(b))
	if text == "max" {
		return math.MaxUint64, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// numbers reads a file of names and numbers, one pair a line.
func numbers(path string) map[string]uint64 {
	all := make(map[string]uint64)
	b, err := os.ReadFile(path)
	if err != nil {
		return all
	}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(string(f[1]), 10, 64); err == nil {
			all[string(f[0])] = n
		}
	}
	return all
}
