// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// write makes files below a directory.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// bySource returns the limit whose source begins so.
func bySource(t *testing.T, all []Limit, source string) Limit {
	t.Helper()
	for _, l := range all {
		if strings.HasPrefix(l.Source, source) {
			return l
		}
	}
	t.Fatalf("no limit %q in %+v", source, all)
	return Limit{}
}

const mib = 1 << 20

// TestCgroups: limits of cgroups of both versions, and of those above them.
func TestCgroups(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		source string
		bytes  uint64
		room   uint64
	}{
		"v2": {map[string]string{
			"proc/self/cgroup": "0::/job/2\n", "proc/meminfo": "MemTotal: 1048576 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
			"cg/job/2/memory.events": "", "cg/job/2/memory.max": "104857600\n", "cg/job/2/memory.current": "41943040\n",
			"cg/job/2/memory.stat": "anon 1\ninactive_file 10485760\nactive_file 10485760\n", "cg/job/memory.max": "max\n",
		}, "memory.max of the cgroup /job/2", 100 * mib, 80 * mib},
		"v2 above": {map[string]string{
			"proc/self/cgroup": "0::/job/2\n", "cg/job/2/memory.events": "", "cg/job/2/memory.max": "max\n",
			"cg/job/memory.max": "209715200\n", "cg/job/memory.current": "0\n",
		}, "memory.max of the cgroup /job", 200 * mib, 200 * mib},
		"v2 swap": {map[string]string{
			"proc/self/cgroup": "0::/job\n", "proc/meminfo": "SwapFree: 51200 kB\n",
			"cg/job/memory.events": "", "cg/job/memory.max": "104857600\n", "cg/job/memory.swap.max": "10485760\n",
		}, "memory.max of the cgroup /job", 110 * mib, 110 * mib},
		"v1": {map[string]string{
			"proc/self/cgroup": "7:cpu:/a\n4:memory:/job\n", "proc/meminfo": "SwapFree: 51200 kB\n",
			"cg/memory/job/memory.oom_control": "", "cg/memory/job/memory.limit_in_bytes": "104857600\n", "cg/memory/job/memory.usage_in_bytes": "20971520\n",
			"cg/memory/job/memory.memsw.limit_in_bytes": "115343360\n", "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"cg/memory/job/memory.stat": "total_inactive_file 10485760\ninactive_file 1\n",
		}, "memory.limit_in_bytes of the cgroup /job", 110 * mib, 100 * mib},
		"machine": {map[string]string{
			"proc/meminfo": "MemTotal: 102400 kB\nSwapTotal: 1024 kB\n",
		}, "the memory of the machine", 101 * mib, 101 * mib},
		"container": {map[string]string{
			"proc/self/cgroup": "0::/not/mounted\n", "cg/memory.events": "", "cg/memory.max": "104857600\n",
		}, "memory.max of the cgroup /", 100 * mib, 100 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, c.files)
			l := bySource(t, limits(filepath.Join(dir, "proc"), filepath.Join(dir, "cg")), c.source)
			if l.Bytes != c.bytes || l.Room() != c.room || l.Scope == "" {
				t.Errorf("%+v, %d left; want %d and %d", l, l.Room(), c.bytes, c.room)
			}
		})
	}
}

// TestShell: a limit of the shell is found in a process under it, and what the process
// uses, which Go has reserved much of.
func TestShell(t *testing.T) {
	if os.Getenv("MEMLIMIT_TEST_CHILD") != "" {
		for _, l := range Limits() {
			fmt.Printf("%s: %d MiB, %d used\n", l.Source, l.Bytes/mib, min(1, l.Used))
		}
		return
	}
	for flag, want := range map[string]string{
		"-v": "the limit of a process's address space (ulimit -v): 8192 MiB, 1 used",
		"-d": "the limit of a process's data (ulimit -d): 8192 MiB, 1 used",
	} {
		c := exec.Command("sh", "-c", "ulimit "+flag+" 8388608 && exec \"$0\" -test.run TestShell", os.Args[0])
		c.Env = append(os.Environ(), "MEMLIMIT_TEST_CHILD=1")
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "the memory of the machine: ") {
			t.Errorf("%v: %s, want %q", err, out, want)
		}
	}
}
