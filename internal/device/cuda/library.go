// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// library is a library of the vendor's.
type library struct {
	what    string
	names   []string // the newest major version first
	system  bool     // belongs to the system: no Python and no toolkit has it
	install string   // how one comes to it
}

var (
	driverLibrary   = library{"driver", []string{"libcuda.so.1"}, true, "install NVIDIA's driver"}
	compilerLibrary = library{"compiler", []string{"libnvrtc.so.13", "libnvrtc.so.12"}, false, "install NVRTC (pip install nvidia-cuda-nvrtc)"}
)

// places returns where a library is looked for, in this order: the directories of
// COHORT_CUDA_PATH; where the system's loader looks; the packages of the Python that is first
// in PATH, among which PyTorch's are; the toolkit. A driver belongs to the system, so only
// the first two can have it.
func places(l library) []dlopen.Place {
	var all []dlopen.Place
	if dirs, ok := envvar.CUDAPath.Lookup(); ok {
		for _, dir := range filepath.SplitList(dirs) {
			all = append(all, dlopen.Place{Dir: dir, Why: "of " + string(envvar.CUDAPath)})
		}
	}
	all = append(all, dlopen.Place{})
	if l.system {
		return all
	}
	if prefix := pythonPrefix(exec.LookPath); prefix != "" {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			all = append(all, dlopen.Place{Dir: filepath.Join(prefix, "lib", "python3*", packages, "nvidia", "*", "lib"), Why: "of Python"})
		}
	}
	return append(all, dlopen.Place{Dir: "/usr/local/cuda/lib64"})
}

// pythonPrefix returns the directory that has the bin of the Python that is first in PATH, ""
// if there is none. The Python is not run: of an environment the link in PATH lies in it.
func pythonPrefix(look func(string) (string, error)) string {
	for _, name := range []string{"python3", "python"} {
		path, err := look(name)
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err == nil {
			return filepath.Dir(filepath.Dir(path))
		}
	}
	return ""
}

// open finds and loads a library.
func (l library) open() (*dlopen.Library, error) {
	lib, err := dlopen.Search(l.names, places(l))
	if err != nil {
		return nil, missing(l, err)
	}
	return lib, nil
}

// resolve finds the functions of a library.
func (l library) resolve(lib *dlopen.Library, symbols []string, addresses []uintptr) error {
	for i, name := range symbols {
		fn, ok := lib.Lookup(name)
		if !ok {
			return &LibraryError{Library: l.what, Path: lib.Name, Reason: fmt.Errorf("it has no function %s", name), Remedy: "a newer version has it"}
		}
		addresses[i] = fn
	}
	return nil
}

// pointer makes a pointer of an address that a library has returned, which is none of Go's
// memory.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// textAt returns the text at an address, which ends with a zero and is cut at limit bytes.
func textAt(address uintptr, limit int) string {
	if address == 0 {
		return ""
	}
	var b []byte
	for p := pointer(address); len(b) < limit && *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b = append(b, *(*byte)(p))
	}
	return string(b)
}
