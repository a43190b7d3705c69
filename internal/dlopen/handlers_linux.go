// SPDX-License-Identifier: Apache-2.0

package dlopen

import (
	"fmt"
	"syscall"
	"unsafe"
)

// numSignals is how many signals Linux has.
const numSignals = 64

// action is the kernel's struct sigaction, of which no part is looked into.
type action [4]uint64

// Handlers are the handlers of all signals at one moment.
type Handlers [numSignals + 1]action

// maskSize is the bytes of the kernel's set of signals.
const maskSize = 8

func sigaction(signal int, set, old *action) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), maskSize, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// SaveHandlers returns the handlers as they are.
func SaveHandlers() *Handlers {
	h := &Handlers{}
	for s := 1; s <= numSignals; s++ {
		_ = sigaction(s, nil, &h[s]) // fails for no signal that exists
	}
	return h
}

// Restore puts back the handlers that have changed since, and returns their signals.
func (h *Handlers) Restore() (changed []syscall.Signal, err error) {
	for s := 1; s <= numSignals; s++ {
		var now action
		if sigaction(s, nil, &now) != nil || now == h[s] {
			continue
		}
		if e := sigaction(s, &h[s], nil); e != nil && err == nil {
			err = fmt.Errorf("put back the handler of signal %d: %w", s, e)
		}
		changed = append(changed, syscall.Signal(s))
	}
	return changed, err
}
