// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/processor"
)

// useful are the features that kernels of Cohort, PyTorch or their libraries choose by.
var useful = []string{"sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl",
	"avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
	"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"}

// findCPU reads what the system tells about processors. root is "/" but in tests.
func findCPU(root string) (CPU, []string) {
	var notes []string
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		notes = append(notes, fmt.Sprintf("which processors this process may use is not known: %v", err))
	}
	c := CPU{Threads: allowed.Count()}
	info, err := processor.Read(root)
	if err != nil {
		notes = append(notes, fmt.Sprintf("model and features of the processors are not known: %v", err))
	}
	c.Model, c.Online = info.Model, info.Online
	for _, f := range useful {
		if slices.Contains(info.Features, f) {
			c.Features = append(c.Features, f)
		}
	}
	system := filepath.Join(root, "sys/devices/system")
	type place struct{ socket, core string }
	cores, sockets, nodes := map[place]bool{}, map[string]bool{}, map[string]bool{}
	dirs, _ := filepath.Glob(filepath.Join(system, "cpu/cpu[0-9]*"))
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "cpu"))
		if err != nil || !allowed.IsSet(id) {
			continue
		}
		socket := readWord(filepath.Join(dir, "topology/physical_package_id"))
		if siblings := readWord(filepath.Join(dir, "topology/thread_siblings_list")); siblings != "" {
			cores[place{socket, siblings}] = true
			sockets[socket] = true
		}
		if found, _ := filepath.Glob(filepath.Join(dir, "node[0-9]*")); len(found) == 1 {
			nodes[filepath.Base(found[0])] = true
		}
		if c.Caches == nil {
			c.Caches = findCaches(filepath.Join(dir, "cache"))
		}
	}
	c.Cores, c.Sockets, c.NUMANodes = len(cores), len(sockets), len(nodes)
	c.Quota, _ = processor.Quota(root)
	c.Memory = memoryTotal(filepath.Join(root, "proc/meminfo"))
	return c, notes
}

func findCaches(dir string) (out []Cache) {
	indexes, _ := filepath.Glob(filepath.Join(dir, "index[0-9]*"))
	for _, index := range indexes {
		level, err := strconv.Atoi(readWord(filepath.Join(index, "level")))
		if err != nil {
			continue
		}
		size := readWord(filepath.Join(index, "size"))
		kib, err := strconv.ParseUint(strings.TrimSuffix(size, "K"), 10, 40)
		if err != nil {
			continue
		}
		out = append(out, Cache{
			Level: level, Kind: strings.ToLower(readWord(filepath.Join(index, "type"))), Bytes: kib << 10,
			SharedBy: countList(readWord(filepath.Join(index, "shared_cpu_list"))),
		})
	}
	return out
}

// countList counts the numbers of a list such as 0-3,8.
func countList(text string) (n int) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		n += max(0, b-a+1)
	}
	return n
}

func memoryTotal(path string) uint64 {
	for line := range strings.Lines(readText(path)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(f[1], 10, 50)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

func readWord(path string) string { return strings.TrimSpace(readText(path)) }
