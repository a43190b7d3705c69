// SPDX-License-Identifier: Apache-2.0

// Package fake is a stand-in for NVIDIA's driver and compiler, for tests on machines without
// a GPU. It is built from C++ by g++ when a test starts, and is loaded as libcuda.so.1 and
// libnvrtc.so.13 are.
//
// # Mental model
//
// The device is a process of its own. It shares two regions of addresses with the program:
// the memory of the device, which the program may not touch, and pinned memory. A thread
// serves each stream. Kernels are compiled from the very sources that NVRTC compiles
// (src/emu.h says what CUDA's words mean); the threads of a block change at barriers.
//
// # What it finds
//
//   - reads of the host from memory of the device: the program ends with the address
//   - kernels and copies that reach beyond a piece of memory, or use it after it was freed
//     (only pieces that come from the driver: see AllocatorOptions.Direct of package cuda)
//   - what was never written: fresh and shared memory are NaN
//   - barriers to which not all threads come
//   - a missing event: with a seed streams pause, and what is not ordered comes in any order
//
// It finds neither races between the threads of a warp nor what is slow. It shares no code
// with the CPU's kernels.
package fake

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/dlopen"
)

//go:embed src
var sources embed.FS

// ErrNoCompiler says that there is no g++.
var ErrNoCompiler = errors.New("there is no g++, which builds the stand-in for CUDA")

// Fake is a stand-in that has been built and loaded.
type Fake struct {
	// Dir has libcuda.so.1 and libnvrtc.so.13: a value for COHORT_CUDA_PATH.
	Dir                           string
	start, stop, lastError, count uintptr
	device, header                string
}

// Options describe a device.
type Options struct {
	// Seed makes streams pause, and the threads of a block start in any order, if it is not 0.
	Seed uint32
	// Memory is the bytes of the device; 0 is 4 GiB.
	Memory int
	// Version is that of CUDA which the driver says it knows; 0 is 13000.
	Version int
	// InitCode is what cuInit returns.
	InitCode int
	// Flags are those of g++ for kernels; "" is -O1.
	Flags string
}

// Count is something that the driver counts since the start.
type Count uintptr

// What is counted.
const (
	Blocks  Count = iota // pieces of memory that the driver was asked for
	Waits                // synchronisations of the host
	Uploads              // copies from the host
	Launches
)

// Build builds the stand-in in a directory, and loads it.
func Build(dir string) (*Fake, error) {
	if !dlopen.Built {
		return nil, dlopen.ErrNotBuilt
	}
	compiler, err := exec.LookPath("g++")
	if err != nil {
		return nil, ErrNoCompiler
	}
	if err := os.CopyFS(dir, sources); err != nil {
		return nil, err
	}
	src := filepath.Join(dir, "src")
	f := &Fake{Dir: dir, device: filepath.Join(dir, "device"), header: filepath.Join(src, "emu.h")}
	lib := filepath.Join(dir, "libcuda.so.1")
	for _, args := range [][]string{
		{"-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-o", lib, filepath.Join(src, "driver.cpp")},
		{"-O2", "-o", f.device, filepath.Join(src, "device.cpp"), "-ldl", "-lpthread"},
	} {
		if out, err := exec.Command(compiler, append([]string{"-std=c++17"}, args...)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("g++: %w: %s", err, out)
		}
	}
	if err := os.Link(lib, filepath.Join(dir, "libnvrtc.so.13")); err != nil {
		return nil, err
	}
	loaded, err := dlopen.Open(lib)
	if err != nil {
		return nil, err
	}
	for name, fn := range map[string]*uintptr{"fakeStart": &f.start, "fakeStop": &f.stop, "fakeLastError": &f.lastError, "fakeCount": &f.count} {
		var ok bool
		if *fn, ok = loaded.Lookup(name); !ok {
			return nil, fmt.Errorf("fake: there is no %s", name)
		}
	}
	return f, nil
}

// Start begins with a new device. Devices that were opened before must have been closed.
func (f *Fake) Start(o Options) error {
	if o.Memory == 0 {
		o.Memory = 4 << 30
	}
	if o.Version == 0 {
		o.Version = 13000
	}
	if o.Flags == "" {
		o.Flags = "-O1"
	}
	code := int32(dlopen.Call(f.start, uintptr(unsafe.Pointer(text(f.device))), uintptr(unsafe.Pointer(text(f.header))), uintptr(unsafe.Pointer(text(o.Flags))),
		uintptr(o.Seed), uintptr(o.Memory), uintptr(o.Version), uintptr(o.InitCode)))
	if code != 0 {
		return fmt.Errorf("fake: the device does not start: step %d failed", code)
	}
	return nil
}

// Stop ends the process of the device.
func (f *Fake) Stop() { dlopen.Call(f.stop) }

// LastError says what went wrong on the device, and where: kernel, block and thread.
func (f *Fake) LastError() string {
	address := dlopen.Call(f.lastError)
	var b []byte
	for p := *(*unsafe.Pointer)(unsafe.Pointer(&address)); *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b = append(b, *(*byte)(p))
	}
	return string(b)
}

// Count returns how often something has happened since the start.
func (f *Fake) Count(what Count) int { return int(dlopen.Call(f.count, uintptr(what))) }

func text(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }
