// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// askFor bounds a call of nvidia-smi, which hangs where a driver does.
const askFor = 10 * time.Second

// Find returns what this machine has. It takes no longer than the context and ten seconds.
func Find(ctx context.Context) List {
	var l List
	l.CPU, l.Notes = findCPU("/")
	gpus, notes := findGPUs(ctx, "/", exec.LookPath)
	l.GPUs, l.Notes = gpus, append(l.Notes, notes...)
	return l
}

// findGPUs reads the list of NVIDIA's driver, and asks nvidia-smi where it is. root is "/"
// but in tests.
func findGPUs(ctx context.Context, root string, look func(string) (string, error)) (gpus []GPU, notes []string) {
	driver := driverVersion(filepath.Join(root, "proc/driver/nvidia/version"))
	dirs, _ := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*"))
	for i, dir := range dirs {
		g := GPU{Index: i, Bus: filepath.Base(dir), Driver: driver, NUMANode: -1}
		text, _ := os.ReadFile(filepath.Join(dir, "information"))
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
			case "Model":
				g.Model = value
			case "GPU UUID":
				g.UUID = value
			}
		}
		node, err := os.ReadFile(filepath.Join(root, "sys/bus/pci/devices", strings.ToLower(g.Bus), "numa_node"))
		if n, err2 := strconv.Atoi(strings.TrimSpace(string(node))); err == nil && err2 == nil {
			g.NUMANode = n
		}
		gpus = append(gpus, g)
	}
	smi, err := look("nvidia-smi")
	if err != nil {
		if len(gpus) > 0 {
			notes = append(notes, "memory and links of the GPUs are not known: there is no nvidia-smi in PATH")
		}
		return gpus, notes
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askFor, errors.New("nvidia-smi did not answer within 10 seconds"))
	defer cancel()
	out, err := ask(ctx, smi, "--query-gpu=index,uuid,pci.bus_id,name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits")
	if err != nil {
		return gpus, append(notes, fmt.Sprintf("memory and links of the GPUs are not known: %v", err))
	}
	gpus = mergeGPUs(gpus, parseGPUs(out))
	if len(gpus) > 1 {
		if out, err = ask(ctx, smi, "topo", "-m"); err == nil {
			addLinks(gpus, out)
		}
	}
	return gpus, notes
}

func ask(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("nvidia-smi: %w: %s", err, said)
	}
	return string(out), nil
}

// driverVersion reads the version from a line such as
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build …".
func driverVersion(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for _, word := range strings.Fields(line) {
		if first, _, ok := strings.Cut(word, "."); ok {
			if _, err := strconv.Atoi(first); err == nil {
				return word
			}
		}
	}
	return ""
}

// parseGPUs reads the table of nvidia-smi that findGPUs asks for; lines that are not of it
// are left out.
func parseGPUs(text string) (gpus []GPU) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		if len(f) != 7 {
			continue
		}
		index, err := strconv.Atoi(f[0])
		if err != nil {
			continue
		}
		g := GPU{Index: index, UUID: f[1], Bus: f[2], Model: f[3], Driver: f[4], NUMANode: -1}
		g.Memory, g.Used = mebibytes(f[5]), mebibytes(f[6])
		gpus = append(gpus, g)
	}
	return gpus
}

func mebibytes(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 40)
	if err != nil {
		return 0 // "[N/A]"
	}
	return n << 20
}

// mergeGPUs adds what the files know to what nvidia-smi has told, by UUID. Its list counts:
// it leaves out GPUs that this process may not use.
func mergeGPUs(files, told []GPU) []GPU {
	for i, g := range told {
		for _, f := range files {
			if f.UUID == g.UUID {
				told[i].NUMANode = f.NUMANode
			}
		}
	}
	return told
}

// addLinks reads the table of "nvidia-smi topo -m", whose rows begin with GPU and a number.
func addLinks(gpus []GPU, text string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) <= len(gpus) || !strings.HasPrefix(f[0], "GPU") {
			continue
		}
		i, err := strconv.Atoi(strings.TrimPrefix(f[0], "GPU"))
		if err != nil || i < 0 || i >= len(gpus) || f[1] == "GPU1" {
			continue
		}
		links := append([]string(nil), f[1:1+len(gpus)]...)
		if links[i] != "X" {
			continue
		}
		links[i] = ""
		gpus[i].Links = links
	}
}
