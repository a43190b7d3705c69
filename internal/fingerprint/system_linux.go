// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/memlimit"
	"github.com/cohort-ml/cohort/internal/processor"
)

// collectSystem reads kernel, libc, processor, memory and limits.
func (f *Fingerprint) collectSystem(s source) {
	f.Set(System, "kernel", s.read("/proc/sys/kernel/osrelease"))
	f.Set(System, "distribution", osRelease(s.read("/etc/os-release")))
	f.Set(System, "libc", libc(s))
	f.Set(System, "container", container(s))
	f.collectCPU(s)
	f.collectMemory(s)
	f.collectLimits(s)
}

func osRelease(text string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

var (
	glibcVersion = regexp.MustCompile(`GNU C Library [^\n\x00]*version (\d+\.\d+)`)
	muslVersion  = regexp.MustCompile(`\x00(1\.\d+\.\d+)\x00`)
)

// libc reads the version out of the C library itself. Nothing is started.
func libc(s source) string {
	for _, pattern := range []string{"/lib/*-linux-gnu*/libc.so.6", "/lib64/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6", "/lib/libc.so.6"} {
		for _, path := range s.glob(pattern) {
			if b, err := os.ReadFile(path); err == nil {
				if m := glibcVersion.FindSubmatch(b); m != nil {
					return "glibc " + string(m[1])
				}
			}
		}
	}
	for _, path := range s.glob("/lib/ld-musl-*.so.1") {
		if b, err := os.ReadFile(path); err == nil {
			if m := muslVersion.FindSubmatch(b); m != nil {
				return "musl " + string(m[1])
			}
		}
	}
	return ""
}

// container says in what kind of container this process is, "" for none.
func container(s source) string {
	if env := s.read("/run/.containerenv"); env != "" {
		return "podman"
	}
	if _, err := os.Stat(s.path("/.dockerenv")); err == nil {
		return "docker"
	}
	if _, err := os.Stat(s.path("/var/run/secrets/kubernetes.io")); err == nil {
		return "kubernetes"
	}
	return s.read("/run/systemd/container")
}

// wanted are the features by which programs choose their kernels.
var wanted = regexp.MustCompile(`^(sse4_2|avx|avx2|fma|f16c|bmi1|bmi2|avx_vnni|avx512\w*|amx_\w+|vaes|gfni|sha_ni|pclmulqdq|asimd\w*|sve\w*|sme2?|bf16|i8mm|fphp|sha2|atomics)$`)

func (f *Fingerprint) collectCPU(s source) {
	info, _ := processor.Read(s.path("/"))
	var features []string
	for _, w := range info.Features {
		if wanted.MatchString(w) {
			features = append(features, w)
		}
	}
	slices.Sort(features)
	f.Set(CPU, "model", info.Model)
	f.Set(CPU, "features", strings.Join(features, " "))
	f.Set(CPU, "kernels", kernel.InstructionSet())
	if info.Online > 0 {
		f.Set(CPU, "online", strconv.Itoa(info.Online))
	}
	if info.Cores > 0 {
		f.Set(CPU, "cores", strconv.Itoa(info.Cores))
	}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		f.Set(CPU, "allowed", strconv.Itoa(set.Count()))
	} else {
		f.Set(CPU, "allowed", strconv.Itoa(runtime.NumCPU()))
	}
	if quota, file := processor.Quota(s.path("/")); quota > 0 {
		f.Set(CPU, "quota", strconv.FormatFloat(quota, 'f', -1, 64))
		f.Set(CPU, "quota_file", file)
	} else {
		f.Set(CPU, "quota", unlimited)
	}
	f.Set(CPU, "governor", s.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
	f.Set(CPU, "smt", s.read("/sys/devices/system/cpu/smt/control"))
	if nodes := s.glob("/sys/devices/system/node/node[0-9]*"); len(nodes) > 0 {
		f.Set(CPU, "numa_nodes", strconv.Itoa(len(nodes)))
	}
}

func (f *Fingerprint) collectMemory(s source) {
	for line := range strings.Lines(s.read("/proc/meminfo")) {
		name, value, _ := strings.Cut(line, ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		n, err := strconv.ParseUint(words[0], 10, 50)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			f.Set(Memory, "total", strconv.FormatUint(n<<10, 10))
		case "SwapTotal":
			f.Set(Memory, "swap", strconv.FormatUint(n<<10, 10))
		case "HugePages_Total":
			f.Set(Memory, "huge_pages_reserved", words[0])
		}
	}
	least, file := uint64(math.MaxUint64), ""
	if s.root == "" {
		if dir, name := memlimit.Cgroup("/proc/self/cgroup", "/sys/fs/cgroup"); dir != "" {
			for _, l := range memlimit.Limits() {
				if strings.Contains(l.Source, "cgroup") && l.Bytes < least {
					least, file = l.Bytes, filepath.Join(dir, name)
				}
			}
		}
	}
	if least < 1<<60 {
		f.Set(Memory, "limit", strconv.FormatUint(least, 10))
		f.Set(Memory, "limit_file", file)
	} else {
		f.Set(Memory, "limit", unlimited)
	}
	var st unix.Statfs_t
	if unix.Statfs(s.path("/dev/shm"), &st) == nil {
		f.Set(Memory, "shm", strconv.FormatUint(st.Blocks*uint64(st.Bsize), 10))
	}
	f.Set(Memory, "overcommit", s.read("/proc/sys/vm/overcommit_memory"))
	f.Set(Memory, "max_map_count", s.read("/proc/sys/vm/max_map_count"))
	f.Set(Memory, "swappiness", s.read("/proc/sys/vm/swappiness"))
	if _, rest, ok := strings.Cut(s.read("/sys/kernel/mm/transparent_hugepage/enabled"), "["); ok {
		mode, _, _ := strings.Cut(rest, "]")
		f.Set(Memory, "huge_pages", mode)
	}
}

func (f *Fingerprint) collectLimits(s source) {
	for _, l := range []struct {
		key  string
		kind int
	}{
		{"open_files", unix.RLIMIT_NOFILE}, {"processes", unix.RLIMIT_NPROC}, {"locked_memory", unix.RLIMIT_MEMLOCK},
		{"address_space", unix.RLIMIT_AS}, {"data", unix.RLIMIT_DATA}, {"stack", unix.RLIMIT_STACK},
		{"file_size", unix.RLIMIT_FSIZE}, {"core", unix.RLIMIT_CORE}, {"cpu_time", unix.RLIMIT_CPU},
	} {
		var r unix.Rlimit
		if unix.Getrlimit(l.kind, &r) != nil {
			continue
		}
		value := strconv.FormatUint(r.Cur, 10)
		if l.key == "open_files" {
			// Go's runtime raises the soft limit of this process, and ranks do the same.
			value = strconv.FormatUint(max(r.Cur, r.Max), 10)
		}
		if r.Cur >= 1<<62 {
			value = unlimited
		}
		f.Set(Limits, l.key, value)
	}
	for _, dir := range processor.Groups(s.path("/"), "pids") {
		if n := readFile(filepath.Join(dir, "pids.max")); n != "" && n != "max" {
			f.Set(Limits, "pids", n)
			f.Set(Limits, "pids_file", filepath.Join(dir, "pids.max"))
			break
		}
		f.Set(Limits, "pids", unlimited)
	}
	for line := range strings.Lines(s.read("/proc/self/status")) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			f.Set(Limits, "umask", strings.TrimSpace(v))
		}
	}
	f.Set(Limits, "user", fmt.Sprint(os.Getuid()))
}
