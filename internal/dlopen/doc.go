// SPDX-License-Identifier: Apache-2.0

// Package dlopen calls C libraries that are found when the program runs, without cgo. It is
// the one package that imports purego.
//
// The package has two forms. With the build tag mpi or cuda, [Open] loads libraries; the
// program then needs the system's dynamic loader. Without both tags the program is one static
// file, and [Open] returns [ErrNotBuilt].
//
// A library that is loaded or initialised may install handlers of signals. Go needs its own:
// it preempts goroutines and reports nil dereferences by signals, and its handlers run on
// stacks of their own. [Handlers] puts them back: call [SaveHandlers] before a library is
// loaded, and [Handlers.Restore] after it has been initialised.
//
// # Caveats
//
// A pointer that C keeps after a call must not be one to the stack of a goroutine, which
// moves. Memory of the heap does not move, and lives as long as Go refers to it. Floating
// point arguments cannot be passed.
package dlopen

import "errors"

// ErrNotBuilt is the error of [Open] in a program that was built without it.
var ErrNotBuilt = errors.New("this program was built without the loading of C libraries")
