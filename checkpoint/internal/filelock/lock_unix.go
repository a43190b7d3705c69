// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// Lock locks an open file or directory, which release closes. held is false
// where the file system has no locks.
func Lock(f *os.File, busy error) (release func(), held bool, err error) {
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
		return nil, false, busy
	default:
		f.Close()
		return func() {}, false, nil
	}
}
