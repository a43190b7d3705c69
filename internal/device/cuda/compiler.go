// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/dlopen"
)

// compilerCall is a function of NVRTC.
type compilerCall int

const (
	rtcVersion compilerCall = iota
	rtcCreateProgram
	rtcDestroyProgram
	rtcCompileProgram
	rtcGetCUBINSize
	rtcGetCUBIN
	rtcGetProgramLogSize
	rtcGetProgramLog
	numCompilerCalls
)

var compilerSymbols = [numCompilerCalls]string{
	rtcVersion: "nvrtcVersion", rtcCreateProgram: "nvrtcCreateProgram", rtcDestroyProgram: "nvrtcDestroyProgram",
	rtcCompileProgram: "nvrtcCompileProgram", rtcGetCUBINSize: "nvrtcGetCUBINSize", rtcGetCUBIN: "nvrtcGetCUBIN",
	rtcGetProgramLogSize: "nvrtcGetProgramLogSize", rtcGetProgramLog: "nvrtcGetProgramLog",
}

// Compiler is NVRTC, which makes code of a device from sources. It needs no driver.
type Compiler struct {
	lib     *dlopen.Library
	fn      [numCompilerCalls]uintptr
	version Version

	mu    sync.Mutex
	known map[compilation][]byte // by what was compiled in this process
}

type compilation struct{ source, arch string }

// theCompiler loads NVRTC once.
var theCompiler = sync.OnceValues(loadCompiler)

// OpenCompiler returns NVRTC. It is loaded once in a process.
func OpenCompiler() (*Compiler, error) { return theCompiler() }

func loadCompiler() (*Compiler, error) {
	lib, err := compilerLibrary.open()
	if err != nil {
		return nil, err
	}
	c := &Compiler{lib: lib}
	if err := compilerLibrary.resolve(lib, compilerSymbols[:], c.fn[:]); err != nil {
		return nil, err
	}
	major, minor := new(int32), new(int32)
	if err := c.call(rtcVersion, uintptr(unsafe.Pointer(major)), uintptr(unsafe.Pointer(minor))); err != nil {
		return nil, err
	}
	c.version = Version(*major*1000 + *minor*10)
	return c, c.loadBuiltins()
}

// loadBuiltins loads what NVRTC otherwise looks for by name, where the loader does not look
// if NVRTC itself was found by its path.
func (c *Compiler) loadBuiltins() error {
	dir := filepath.Dir(c.lib.Name)
	if dir == "." {
		return nil
	}
	name := fmt.Sprintf("libnvrtc-builtins.so.%d.%d", c.version.Major(), int(c.version)%1000/10)
	_, err := dlopen.Search([]string{name}, []dlopen.Place{{Dir: dir}})
	var none *dlopen.NotFoundError
	if errors.As(err, &none) {
		return nil // it may be elsewhere; a compilation says so
	}
	return err
}

// Version returns the version of CUDA that the compiler belongs to.
func (c *Compiler) Version() Version { return c.version }

// fits says whether a driver runs what the compiler makes.
func (c *Compiler) fits(driver Version) error {
	if c.version.Major() <= driver.Major() {
		return nil
	}
	return &LibraryError{Library: compilerLibrary.what, Path: c.lib.Name,
		Reason: fmt.Errorf("it makes code of CUDA %v, and the driver runs code up to CUDA %d", c.version, driver.Major()),
		Remedy: fmt.Sprintf("install a newer driver, or NVRTC of CUDA %d", driver.Major())}
}

//go:uintptrescapes
func (c *Compiler) call(f compilerCall, args ...uintptr) error {
	if code := int32(dlopen.Call(c.fn[f], args...)); code != 0 {
		return &CallError{Call: compilerSymbols[f], Code: int(code), Text: "see the log of the compiler"}
	}
	return nil
}

// Once does what Compile does, and remembers the code: devices of a process share it.
func (c *Compiler) Once(name, source, arch string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := compilation{source, arch}
	if code := c.known[key]; code != nil {
		return code, nil
	}
	code, _, err := c.Compile(name, source, arch)
	if err != nil {
		return nil, err
	}
	if c.known == nil {
		c.known = map[compilation][]byte{}
	}
	c.known[key] = code
	return code, nil
}

// Compile compiles a source for an architecture such as sm_90a. name is for messages. It
// returns the code and the compiler's log, which has the use of registers by each kernel. The
// error has the log too.
func (c *Compiler) Compile(name, source, arch string) (code []byte, log string, err error) {
	program := new(uintptr)
	text, title := zeroTerminated(source), zeroTerminated(name)
	if err := c.call(rtcCreateProgram, uintptr(unsafe.Pointer(program)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(title)), 0, 0, 0); err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, c.call(rtcDestroyProgram, uintptr(unsafe.Pointer(program)))) }()
	var options []*byte
	for _, o := range []string{"--gpu-architecture=" + arch, "--std=c++17", "--ptxas-options=-v", "--fmad=true"} {
		options = append(options, zeroTerminated(o))
	}
	failed := c.call(rtcCompileProgram, *program, uintptr(len(options)), uintptr(unsafe.Pointer(unsafe.SliceData(options))))
	runtime.KeepAlive(options)
	said, err := c.read(*program, rtcGetProgramLogSize, rtcGetProgramLog)
	if err != nil {
		return nil, "", err
	}
	log = strings.TrimRight(string(said), "\x00\n")
	if failed != nil {
		return nil, log, fmt.Errorf("compile %s for %s: %w:\n%s", name, arch, failed, log)
	}
	code, err = c.read(*program, rtcGetCUBINSize, rtcGetCUBIN)
	return code, log, err
}

// read reads a result of a compilation, whose size one function tells and another writes.
func (c *Compiler) read(program uintptr, size, get compilerCall) ([]byte, error) {
	n := new(uint64)
	if err := c.call(size, program, uintptr(unsafe.Pointer(n))); err != nil {
		return nil, err
	}
	const most = 1 << 28
	if *n == 0 || *n > most {
		return nil, fmt.Errorf("%s gave a size of %d bytes", compilerSymbols[size], *n)
	}
	b := make([]byte, *n)
	return b, c.call(get, program, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

func zeroTerminated(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }
