// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigAction is the kernel's struct sigaction: what the system does with a signal. This
// package only knows that zeros stand for the default, and that no system has a larger
// struct.
type sigAction [16]uint64

// setAction sets the action of a signal, and returns the action before.
func setAction(s syscall.Signal, to *sigAction) (was sigAction) {
	const setSize = 8 // bytes of a set of signals
	_, _, _ = unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(&was)), setSize, 0, 0)
	return was
}

// handlers are the handlers of the Go runtime that release has removed. They belong to the
// process. The runtime installs a handler only once, and keeps it when nobody catches the
// signal any more, so that the signal then does nothing.
var handlers struct {
	sync.Mutex
	of map[syscall.Signal]sigAction
}

// hold installs the handler of a signal again, after release has removed it.
func hold(s syscall.Signal) {
	handlers.Lock()
	defer handlers.Unlock()
	if h, ok := handlers.of[s]; ok {
		setAction(s, &h)
		delete(handlers.of, s)
	}
}

// release gives a signal its default action.
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

// stopSelf sends this process a signal that stops it. The system drops the signal if no
// shell could continue the process.
func stopSelf(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s) }
