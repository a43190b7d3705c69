// SPDX-License-Identifier: Apache-2.0

//go:build cuda || mpi

package dlopen

import "github.com/ebitengine/purego"

// Built says whether this program can load libraries.
const Built = true

// Library is a library that is loaded. Few survive being unloaded and loaded again.
type Library struct {
	handle uintptr
	// Name is the name or the path by which the library was found.
	Name string
}

// Open loads a library by its name, as the system's loader finds it, or by its path. Its
// symbols are there for libraries that are loaded later, as the modules of an MPI need it.
func Open(name string) (*Library, error) {
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, err
	}
	return &Library{handle: handle, Name: name}, nil
}

// Close unloads the library, unless something else needs it. What the library does at the end
// of a C program it does now: a program in Go ends without that.
func (l *Library) Close() error { return purego.Dlclose(l.handle) }

// Lookup returns the address of a function or a variable of the library.
func (l *Library) Lookup(symbol string) (address uintptr, ok bool) {
	address, err := purego.Dlsym(l.handle, symbol)
	return address, err == nil && address != 0
}

// Call calls a C function with arguments that are integers or pointers, and returns what
// it returns. It blocks the thread, not other goroutines. What a pointer in the list of
// arguments points to stays where it is during the call.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(fn, args...)
	return result
}
