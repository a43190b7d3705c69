// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
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

func TestFindCPU(t *testing.T) {
	cpu := "sys/devices/system/cpu/cpu0/"
	root := lay(t, map[string]string{
		"proc/cpuinfo":                        "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx2 fma sse4_2 avx512f\n\nprocessor\t: 1\nmodel name\t: A Processor\nflags\t\t: fpu\n",
		"proc/meminfo":                        "MemTotal:        2048 kB\nMemFree: 1 kB\n",
		"proc/self/cgroup":                    "0::/job/rank\n",
		"sys/fs/cgroup/job/cpu.max":           "150000 100000\n",
		"sys/fs/cgroup/job/rank/cpu.max":      "max 100000\n",
		cpu + "topology/physical_package_id":  "0\n",
		cpu + "topology/thread_siblings_list": "0-1\n",
		cpu + "node0/cpulist":                 "0-1\n",
		cpu + "cache/index0/level":            "1\n",
		cpu + "cache/index0/type":             "Data\n",
		cpu + "cache/index0/size":             "48K\n",
		cpu + "cache/index0/shared_cpu_list":  "0\n",
		cpu + "cache/index1/level":            "3\n",
		cpu + "cache/index1/type":             "Unified\n",
		cpu + "cache/index1/size":             "32768K\n",
		cpu + "cache/index1/shared_cpu_list":  "0-3,8\n",
	})
	got, notes := findCPU(root)
	want := CPU{
		Model: "A Processor", Threads: got.Threads, Cores: 1, Sockets: 1, NUMANodes: 1, Online: 2, Quota: 1.5,
		Features: []string{"sse4_2", "fma", "avx2", "avx512f"}, Memory: 2 << 20,
		Caches: []Cache{{1, "data", 48 << 10, 1}, {3, "unified", 32 << 20, 5}},
	}
	if !reflect.DeepEqual(got, want) || len(notes) > 0 {
		t.Errorf("%+v, want %+v; notes %q", got, want, notes)
	}
	if got.Threads < 1 {
		t.Errorf("%d threads", got.Threads)
	}
	if _, notes := findCPU(t.TempDir()); len(notes) != 1 || !strings.Contains(notes[0], "cpuinfo") {
		t.Errorf("a system that tells nothing: notes %q", notes)
	}
}

// TestFindGPUs: files of the driver and an nvidia-smi that is a script.
func TestFindGPUs(t *testing.T) {
	gpu := "proc/driver/nvidia/gpus/0000:0%d:00.0/information"
	files := map[string]string{
		"proc/driver/nvidia/version":                 "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12\n",
		strings.Replace(gpu, "%d", "1", 1):           "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-a\n",
		strings.Replace(gpu, "%d", "2", 1):           "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-b\n",
		"sys/bus/pci/devices/0000:01:00.0/numa_node": "1\n",
		"sys/bus/pci/devices/0000:02:00.0/numa_node": "-1\n",
		"bin/nvidia-smi":                             "#!/bin/sh\nif [ \"$1\" = topo ]; then printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tNV18\\t0-1\\nGPU1\\tNV18\\t X \\t0-1\\nLegend:\\n'\nelse echo '0, GPU-a, 00000000:01:00.0, NVIDIA H100, 580.65.06, 81559, 4'; echo '1, GPU-b, 00000000:02:00.0, NVIDIA H100, 580.65.06, [N/A], [N/A]'; fi\n",
		"broken/nvidia-smi":                          "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n",
	}
	root := lay(t, files)
	at := func(dir string) func(string) (string, error) {
		path := filepath.Join(root, dir, "nvidia-smi")
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return func(string) (string, error) { return path, nil }
	}
	got, notes := findGPUs(t.Context(), root, at("bin"))
	want := []GPU{
		{0, "NVIDIA H100", "GPU-a", "00000000:01:00.0", "580.65.06", 81559 << 20, 4 << 20, 1, []string{"", "NV18"}},
		{1, "NVIDIA H100", "GPU-b", "00000000:02:00.0", "580.65.06", 0, 0, -1, []string{"NV18", ""}},
	}
	if !reflect.DeepEqual(got, want) || len(notes) > 0 {
		t.Errorf("%+v, want %+v; notes %q", got, want, notes)
	}
	got, notes = findGPUs(t.Context(), root, at("broken"))
	if len(got) != 2 || got[1].UUID != "GPU-b" || got[0].Driver != "580.65.06" || len(notes) != 1 || !strings.Contains(notes[0], "version mismatch") {
		t.Errorf("a broken nvidia-smi: %+v, notes %q", got, notes)
	}
	none := func(string) (string, error) { return "", errors.New("no such program") }
	if got, notes = findGPUs(t.Context(), t.TempDir(), none); len(got) != 0 || len(notes) != 0 {
		t.Errorf("a machine without GPUs: %+v, notes %q", got, notes)
	}
}

// TestMeasure: rates are those of a machine that computes, and a context ends it.
func TestMeasure(t *testing.T) {
	r, err := Measure(t.Context(), 1, 20*time.Millisecond)
	if err != nil || r.GFlopPerSec <= 0.01 || r.GFlopPerSec > 1e5 || r.CopyBytesPerSec <= 1e6 || r.CopyBytesPerSec > 1e13 {
		t.Errorf("%+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx, 1, time.Hour); err == nil {
		t.Error("a measurement under a context that has ended")
	}
}

// TestCheckProduct: right products pass, and one flipped bit of the 16 highest of the
// fraction does not.
func TestCheckProduct(t *testing.T) {
	if err := CheckProduct(2); err != nil {
		t.Error(err)
	}
	a, b := []float32{1, 2, 3, 4}, []float32{5, 6, 7, 8}
	c := []float32{19, 22, 43, 50}
	if err := compareProduct(c, a, b, 2, 2, 2); err != nil {
		t.Error(err)
	}
	c[2] = 43.01
	if err := compareProduct(c, a, b, 2, 2, 2); err == nil || !strings.Contains(err.Error(), "(1, 0)") {
		t.Errorf("a wrong element: %v", err)
	}
}
