// SPDX-License-Identifier: Apache-2.0

package kernels_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/device/cuda/kernels"
)

var update = flag.Bool("update", false, "write resources.txt")

// entry matches what the assembler says of a kernel.
var (
	entry = regexp.MustCompile(`Compiling entry function '(\w+)' for '(\w+)'`)
	spill = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	used  = regexp.MustCompile(`Used (\d+) registers`)
	smem  = regexp.MustCompile(`(\d+) bytes smem`)
)

// TestResources: NVRTC compiles all kernels for all architectures, none needs more registers
// than its block may have, none spills, and what they take is what resources.txt says.
func TestResources(t *testing.T) {
	c, err := cuda.OpenCompiler()
	var missing *cuda.LibraryError
	if errors.Is(err, cuda.ErrNotBuilt) || errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, arch := range kernels.Archs {
		for _, family := range kernels.Families {
			source, err := kernels.Source(family)
			if err != nil {
				t.Fatal(err)
			}
			code, log, err := c.Compile(family+".cu", source, arch)
			if err != nil {
				t.Error(err)
				continue
			}
			if len(code) < 1000 {
				t.Errorf("%s for %s has %d bytes", family, arch, len(code))
			}
			lines = append(lines, resources(t, family, log)...)
		}
	}
	slices.Sort(lines)
	text := "# NVRTC " + c.Version().String() + ": arch family kernel registers stack spilled shared\n" + strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile("resources.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("resources.txt")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(want), "\n")
	if now, _, _ := strings.Cut(text, "\n"); now != first {
		t.Skipf("resources.txt is of another compiler: %q, and here is %q", first, now)
	}
	if string(want) != text {
		t.Errorf("resources.txt is not what the sources take: run go generate ./internal/device/cuda/kernels and look at the difference; now\n%s", text)
	}
}

// resources returns a line for each kernel of a log.
func resources(t *testing.T, family, log string) (lines []string) {
	var kernel, arch string
	var stack, spilled, shared int
	for line := range strings.Lines(log) {
		if m := entry.FindStringSubmatch(line); m != nil {
			kernel, arch, stack, spilled, shared = m[1], m[2], 0, 0, 0
		}
		if m := spill.FindStringSubmatch(line); m != nil && kernel != "" {
			stack, spilled = number(m[1]), number(m[2])+number(m[3])
		}
		if m := smem.FindStringSubmatch(line); m != nil {
			shared = number(m[1])
		}
		m := used.FindStringSubmatch(line)
		if m == nil || kernel == "" {
			continue
		}
		const threads, registers, memory = 256, 65536, 48 << 10
		if n := number(m[1]); n*threads > registers || spilled > 0 || shared > memory {
			t.Errorf("%s for %s takes %d registers, %d bytes spilled, %d bytes shared", kernel, arch, n, spilled, shared)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %d %d %d", arch, family, kernel, m[1], stack, spilled, shared))
		kernel = ""
	}
	if lines == nil {
		t.Errorf("the log of %s has no kernel: %q", family, log)
	}
	return lines
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// TestSource: a family that is not there is an error.
func TestSource(t *testing.T) {
	if _, err := kernels.Source("none"); err == nil || !strings.Contains(err.Error(), "want one of elementwise") {
		t.Errorf("the error is %v", err)
	}
}
