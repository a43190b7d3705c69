// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigAction is what the system does with a signal: its struct sigaction, of which all that
// is known here is that zeros are the default, and that no system has a larger one.
type sigAction [16]uint64

// setAction sets what is done with a signal, and returns what was before.
func setAction(s syscall.Signal, to *sigAction) (was sigAction) {
	const setSize = 8 // bytes of a set of signals
	_, _, _ = unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(&was)), setSize, 0, 0)
	return was
}

// handlers are those of the Go runtime for signals that stop a process, where release has
// taken them away. It is a fact about the process: the runtime leaves a handler in place
// that nobody wants any more, so that the signal does nothing, and installs each only once.
var handlers struct {
	sync.Mutex
	of map[syscall.Signal]sigAction
}

// hold makes sure that a signal that is caught comes here, also after a release.
func hold(s syscall.Signal) {
	handlers.Lock()
	defer handlers.Unlock()
	if h, ok := handlers.of[s]; ok {
		setAction(s, &h)
		delete(handlers.of, s)
	}
}

// release gives a signal its default again.
func release(s syscall.Signal) {
	handlers.Lock()
	defer handlers.Unlock()
	if handlers.of == nil {
		handlers.of = map[syscall.Signal]sigAction{}
	}
	if _, ok := handlers.of[s]; !ok {
		handlers.of[s] = setAction(s, &sigAction{})
	}
}

// stopSelf sends this process a signal that stops it, unless the system drops it because no
// shell could continue the process.
func stopSelf(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s) }
