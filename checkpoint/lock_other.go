// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package checkpoint

import "os"

// lockFile says that there are no locks: see the package's caveats.
func lockFile(f *os.File, _ error) (unlock func(), locked bool, err error) {
	return func() { f.Close() }, false, nil
}
