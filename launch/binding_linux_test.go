// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// twoSockets is a machine of two sockets with two NUMA nodes each, a node of four
// cores with two threads, and two cores to a cache: processor n+16 is the second
// thread of processor n.
func twoSockets() (cpus []processor) {
	for id := range 32 {
		core := id % 16
		cpus = append(cpus, processor{id: id, node: core / 4, socket: core / 8, core: core, cache: core / 2})
	}
	return cpus
}

func TestBindRanks(t *testing.T) {
	tests := []struct {
		how   Binding
		ranks int
		gpus  []int
		want  string
	}{
		{BindNode, 4, nil, "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31"},
		{BindNode, 2, nil, "0-3,16-19 8-11,24-27"},
		{BindNode, 2, []int{3, 3}, "12-15,28-31 12-15,28-31"},
		{BindNode, 3, []int{1, -1}, "4-7,20-23 4-7,20-23 8-11,24-27"},
		{BindSocket, 2, nil, "0-7,16-23 8-15,24-31"},
		{BindSocket, 1, []int{2}, "8-15,24-31"},
		{BindExclusive, 8, nil, "0-1,16-17 2-3,18-19 4-5,20-21 6-7,22-23 8-9,24-25 10-11,26-27 12-13,28-29 14-15,30-31"},
		{BindExclusive, 3, []int{0, 0, 0}, "0-1,16-17 2,18 3,19"},
		{BindCoreComplex, 3, []int{1, 1, 1}, "4-5,20-21 6-7,22-23 4-5,20-21"},
	}
	for _, tt := range tests {
		got, err := bindRanks(tt.how, twoSockets(), tt.ranks, tt.gpus)
		var text []string
		for _, ids := range got {
			text = append(text, listOf(ids))
		}
		if err != nil || strings.Join(text, " ") != tt.want {
			t.Errorf("%s, %d ranks, GPUs at %v: %v, %v, want %s", tt.how, tt.ranks, tt.gpus, text, err, tt.want)
		}
	}
	if _, err := bindRanks(BindExclusive, twoSockets(), 17, nil); err == nil || !strings.Contains(err.Error(), "has 4 cores for 5 ranks") {
		t.Errorf("more ranks than cores: %v", err)
	}
	if _, err := bindRanks(BindNode, nil, 1, nil); err == nil {
		t.Error("bound to no processor")
	}
	if _, err := ParseBinding("nod"); err == nil {
		t.Error("a binding that does not exist")
	}
	bound, _ := bindRanks(BindNode, twoSockets(), 6, nil)
	if threads := []int{threadsOf(bound, 0), threadsOf(bound, 2)}; !slices.Equal(threads, []int{4, 8}) {
		t.Errorf("threads %v of %v", threads, bound)
	}
}

func TestProcessors(t *testing.T) {
	files := map[string]string{"node/node0/cpulist": "0,2\n", "node/node1/cpulist": "1,3\n", "node/possible": "0-1\n"}
	for i := range 4 {
		dir := fmt.Sprintf("cpu/cpu%d/", i)
		files[dir+"topology/physical_package_id"] = fmt.Sprintln(i % 2)
		files[dir+"topology/thread_siblings_list"] = fmt.Sprintf("%d,%d\n", i%2, i%2+2)
		files[dir+"cache/index3/shared_cpu_list"] = "0-3\n"
	}
	root := t.TempDir()
	writeFiles(t, root, files)
	got := processors(root, func(cpu int) bool { return cpu != 2 })
	if want := []processor{{0, 0, 0, 0, 0}, {1, 1, 1, 1, 0}, {3, 1, 1, 1, 0}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	writeFiles(t, root, map[string]string{"gpus/0000:1A:00.0/x": "", "gpus/0000:3b:00.0/x": "", "pci/0000:1a:00.0/numa_node": "1\n"})
	if got := gpuNodes(filepath.Join(root, "gpus"), filepath.Join(root, "pci")); !slices.Equal(got, []int{1, -1}) {
		t.Errorf("GPUs at %v", got)
	}
}

func TestRunBound(t *testing.T) {
	n := runtime.NumCPU()
	if n < 2 {
		t.Skip("one processor")
	}
	var out output
	cfg := self(t, 2, "hello")
	cfg.Program, cfg.Args = "sh", []string{"-c", "grep Cpus_allowed_list /proc/self/status; echo threads $COHORT_NUM_THREADS"}
	cfg.Env = append(cfg.Env, "COHORT_NUM_THREADS=")
	cfg.Stdout, cfg.Binding = &out, BindExclusive
	if err := Run(t.Context(), cfg); err != nil {
		t.Skip(err) // a machine of other nodes
	}
	seen := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		if _, list, ok := strings.Cut(line, "Cpus_allowed_list:"); ok {
			seen[list] = true
		}
	}
	if len(seen) != 2 || !strings.Contains(out.String(), fmt.Sprintf("[rank1] threads %d\n", n/2)) {
		t.Errorf("the ranks have %v:\n%s", slices.Collect(maps.Keys(seen)), out.String())
	}
	// Who has started them is where it was.
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil || set.Count() < n {
		t.Errorf("%d of %d processors are left here, %v", set.Count(), n, err)
	}
	cfg = self(t, 2, "hello")
	cfg.Binding = "nowhere"
	if err := Run(t.Context(), cfg); ExitCode(err) != 2 || !strings.Contains(err.Error(), "nowhere") {
		t.Error(err)
	}
}
