// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/checkpoint/internal/filelock"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// runLock is the file in a run's directory that a running job holds a lock on.
const runLock = "run.lock"

// Claim makes a run's directory, which it creates if need be, that of this
// process until release or the end of the process, however it comes. While
// another process has it the error is a [*storage.BusyError]: two runs in one directory
// would take each other's checkpoints for their own. On a file system without
// locks nothing is kept apart.
func Claim(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, runLock), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	release, _, err = filelock.Lock(f, &storage.BusyError{Where: dir, Holder: "run"})
	return release, err
}
