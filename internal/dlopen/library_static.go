// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(cuda || mpi)

package dlopen

// Built says whether this program can load libraries.
const Built = false

// Library is a library that is loaded. Few survive being unloaded and loaded again.
type Library struct {
	// Name is the name or the path by which the library was found.
	Name string
}

// Open returns [ErrNotBuilt].
func Open(string) (*Library, error) { return nil, ErrNotBuilt }

// Close does nothing.
func (l *Library) Close() error { return nil }

// Lookup finds nothing.
func (l *Library) Lookup(string) (fn uintptr, ok bool) { return 0, false }

// Call is never reached: there is no function to call.
func Call(uintptr, ...uintptr) uintptr { panic(ErrNotBuilt) }
