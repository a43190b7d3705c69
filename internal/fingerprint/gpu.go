// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// smiTimeout bounds nvidia-smi, which hangs with a broken driver.
const smiTimeout = 10 * time.Second

var (
	driverVersion  = regexp.MustCompile(`Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s`)
	libraryVersion = regexp.MustCompile(`\.so\.(\d+\.\d+\.\d+)$`)
	cudaVersion    = regexp.MustCompile(`CUDA Version\s*:\s*(\d+\.\d+)`)
)

// collectGPU reads the driver's files, and asks nvidia-smi where it is installed.
func (f *Fingerprint) collectGPU(ctx context.Context, s source) {
	if m := driverVersion.FindStringSubmatch(s.read("/proc/driver/nvidia/version")); m != nil {
		f.Set(GPU, "driver", m[1])
	}
	var models []string
	for _, info := range s.glob("/proc/driver/nvidia/gpus/*/information") {
		for line := range strings.Lines(readFile(info)) {
			if name, ok := strings.CutPrefix(line, "Model:"); ok {
				models = append(models, strings.TrimSpace(name))
			}
		}
	}
	if len(models) > 0 {
		f.Set(GPU, "count", strconv.Itoa(len(models)))
		f.Set(GPU, "models", runs(models))
	}
	for key, lib := range map[string]string{"nccl": "libnccl.so.*", "cudnn": "libcudnn.so.*"} {
		for _, dir := range []string{"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib64/", "/usr/local/cuda/lib64/", "/usr/local/lib/"} {
			for _, path := range s.glob(dir + lib) {
				if m := libraryVersion.FindStringSubmatch(filepath.Base(path)); m != nil {
					f.Set(GPU, key, m[1])
				}
			}
		}
	}
	if s.read("/proc/modules") != "" && f.Has(GPU) {
		loaded := strings.Contains("\n"+s.read("/proc/modules"), "\nnvidia_peermem ")
		f.Set(GPU, "peermem", strconv.FormatBool(loaded))
	}
	if s.root != "" {
		return
	}
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits").Output()
	if err != nil {
		return
	}
	f.addSMI(string(out))
	if out, err := exec.CommandContext(ctx, smi, "-q", "-d", "COMPUTE").Output(); err == nil {
		if m := cudaVersion.FindStringSubmatch(string(out)); m != nil {
			f.Set(GPU, "cuda", m[1])
		}
	}
}

// addSMI reads the lines of nvidia-smi: name, MiB of memory, driver.
func (f *Fingerprint) addSMI(text string) {
	var models, memory []string
	for line := range strings.Lines(text) {
		parts := strings.Split(line, ",")
		if len(parts) != 3 {
			continue
		}
		models = append(models, strings.TrimSpace(parts[0]))
		memory = append(memory, strings.TrimSpace(parts[1])+" MiB")
		f.Set(GPU, "driver", strings.TrimSpace(parts[2]))
	}
	if len(models) > 0 {
		f.Set(GPU, "count", strconv.Itoa(len(models)))
		f.Set(GPU, "models", runs(models))
		f.Set(GPU, "memory", runs(memory))
	}
}

// runs writes a list with equal neighbours counted: "8 x NVIDIA H100".
func runs(all []string) string {
	var parts []string
	for i := 0; i < len(all); {
		n := 1
		for i+n < len(all) && all[i+n] == all[i] {
			n++
		}
		parts = append(parts, strconv.Itoa(n)+" x "+all[i])
		i += n
	}
	return strings.Join(parts, ", ")
}
