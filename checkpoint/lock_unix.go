// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package checkpoint

import (
	"errors"
	"os"
	"syscall"
)

// lockDir locks a directory for one save. The lock is the kernel's and goes
// with the process, so a killed save leaves none behind. locked is false where
// the file system has no locks.
func lockDir(dir string) (unlock func(), locked bool, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, false, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		return func() { f.Close() }, true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		f.Close()
		return nil, false, &BusyError{Dir: dir}
	default:
		f.Close()
		return func() {}, false, nil
	}
}
