// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// bind finds the processors of each rank.
func bind(how Binding, numRanks int) ([][]int, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, err
	}
	return bindRanks(how, processors("/sys/devices/system", allowed.IsSet), numRanks, gpuNodes("/proc/driver/nvidia/gpus", "/sys/bus/pci/devices"))
}

// processors reads which parts of the machine the allowed processors belong to.
func processors(root string, allowed func(cpu int) bool) (out []processor) {
	nodeOf := map[int]int{}
	dirs, _ := filepath.Glob(filepath.Join(root, "node", "node[0-9]*"))
	for _, dir := range dirs {
		node, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		for _, cpu := range readList(filepath.Join(dir, "cpulist")) {
			nodeOf[cpu] = node
		}
	}
	dirs, _ = filepath.Glob(filepath.Join(root, "cpu", "cpu[0-9]*"))
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "cpu"))
		if err != nil || !allowed(id) {
			continue
		}
		c := processor{id: id, node: nodeOf[id], socket: readNumber(filepath.Join(dir, "topology", "physical_package_id"))}
		// The kernel's numbers of cores are unique within a socket only. So the first
		// sibling stands for the core, and the first processor of a cache for the cache.
		c.core = first(readList(filepath.Join(dir, "topology", "thread_siblings_list")), id)
		c.cache = first(readList(filepath.Join(dir, "cache", "index3", "shared_cpu_list")), c.socket)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b processor) int { return a.id - b.id })
	return out
}

// gpuNodes returns the NUMA nodes of the GPUs, -1 where the system does not say. The GPUs
// are in the order of their bus addresses, which is the order of their numbers.
func gpuNodes(driver, bus string) (nodes []int) {
	gpus, err := os.ReadDir(driver)
	if err != nil {
		return nil
	}
	for _, gpu := range gpus {
		nodes = append(nodes, readNumber(filepath.Join(bus, strings.ToLower(gpu.Name()), "numa_node")))
	}
	return nodes
}

func first(list []int, otherwise int) int {
	if len(list) == 0 {
		return otherwise
	}
	return list[0]
}

// readNumber reads a number from a file; -1 if there is none.
func readNumber(path string) int {
	b, err := os.ReadFile(path)
	n, err2 := strconv.Atoi(strings.TrimSpace(string(b)))
	if errors.Join(err, err2) != nil {
		return -1
	}
	return n
}

// readList reads a list of numbers and ranges from a file, as in 0-3,8.
func readList(path string) (out []int) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	const most = 1 << 16
	for part := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(lo)
		to := from
		if isRange {
			to, err = strconv.Atoi(hi)
		}
		if err != nil || from < 0 || to < from || to > most {
			continue
		}
		for n := from; n <= to; n++ {
			out = append(out, n)
		}
	}
	return out
}

// boundTo runs fn on these processors. fn starts a process, which inherits them. The
// caller's goroutine must be locked to its thread.
func boundTo(cpus []int, fn func() error) error {
	if cpus == nil {
		return fn()
	}
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the processors of this thread: %w", err)
	}
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to processors %s: %w", listOf(cpus), err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }() // it cannot fail: the thread had these before
	return fn()
}
