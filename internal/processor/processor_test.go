// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lay writes files below a directory of its own.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Info
	}{
		{"amd64", "processor\t: 0\nmodel name\t: A: B\nphysical id\t: 0\ncore id\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: C\nphysical id\t: 0\ncore id\t: 0\nflags\t\t: fpu\n", Info{"A: B", []string{"fpu", "avx2"}, 2, 1}},
		{"arm64", "processor\t: 0\nFeatures\t: asimd sve\nCPU part\t: 0xd4f\n\nprocessor\t: 1\nCPU part\t: 0xd4f\n", Info{"part 0xd4f", []string{"asimd", "sve"}, 2, 0}},
		{"a board", "processor : 0\nCPU part : 0xd08\nModel : Board 4\n", Info{"Board 4", nil, 1, 0}},
		{"nothing", "", Info{}},
	} {
		got, err := Read(lay(t, map[string]string{"proc/cpuinfo": c.text}))
		if err != nil || got.Model != c.want.Model || !slices.Equal(got.Features, c.want.Features) || got.Online != c.want.Online || got.Cores != c.want.Cores {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("no error without a file")
	}
	// This machine.
	if got, err := Read("/"); err != nil || got.Online < 1 {
		t.Errorf("this machine: %+v, %v", got, err)
	}
}

func TestQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  float64
		file  string
	}{
		{"version 2", map[string]string{"proc/self/cgroup": "0::/job/rank\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n", "sys/fs/cgroup/job/rank/cpu.max": "max 100000\n"}, 1.5, "sys/fs/cgroup/job/cpu.max"},
		{"version 1", map[string]string{
			"proc/self/cgroup":                       "5:memory:/other\n3:cpu,cpuacct:/job\n",
			"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
		}, 0.5, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"},
		{"version 1 by the names of both controllers", map[string]string{
			"proc/self/cgroup": "3:cpu,cpuacct:/job\n",
			"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n", "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
		}, 2, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us"},
		{"both versions", map[string]string{"proc/self/cgroup": "3:cpuset:/\n0::/job\n", "sys/fs/cgroup/unified/job/cpu.max": "100000 100000"}, 1, "sys/fs/cgroup/unified/job/cpu.max"},
		{"the namespace of a container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5, "sys/fs/cgroup/cpu.max"},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, 0, ""},
		{"nonsense", map[string]string{"proc/self/cgroup": "0::/../../etc\n:\nx\n", "sys/fs/cgroup/cpu.max": "a b c"}, 0, ""},
		{"nothing", nil, 0, ""},
	} {
		root := lay(t, c.files)
		got, file := Quota(root)
		if file = strings.TrimPrefix(strings.TrimPrefix(file, root), "/"); got != c.want || file != c.file {
			t.Errorf("%s: %v by %q, want %v by %q", c.name, got, file, c.want, c.file)
		}
	}
}

// FuzzRead: whatever the file says, the limits hold.
func FuzzRead(f *testing.F) {
	f.Add("processor : 0\nflags : a b\nphysical id : 1\ncore id : 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse(strings.NewReader(text))
		if err == nil && (c.Online > strings.Count(text, "processor") || len(c.Features) > len(text) || c.Cores > strings.Count(text, "core id")) {
			t.Errorf("%q: %+v", text, c)
		}
	})
}
