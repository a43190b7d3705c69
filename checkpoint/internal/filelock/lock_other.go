// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package filelock

import "os"

// Lock closes the file and says that there are no locks here.
func Lock(f *os.File, _ error) (release func(), held bool, err error) {
	f.Close()
	return func() {}, false, nil
}
