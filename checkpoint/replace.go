// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"os"
)

// Replace makes the checkpoint of a step as [Save] does, and then removes every
// other one in dir, also those of higher steps: afterwards [Latest] finds this
// one. One of the same step is replaced, and is gone if the machine stops
// between two renames then. It is for directories that hold one checkpoint, such
// as the best of a run.
func Replace(ctx context.Context, dir string, step int, write func(*Writer) error) error {
	return (&save{dir: dir, step: step, keep: 1, alone: true}).run(ctx, write)
}

// makeRoom moves what is in the place of the checkpoint out of its way, and
// returns where it is, "" if there was nothing.
func (s *save) makeRoom(final string) (old string, err error) {
	if _, err := os.Lstat(final); err != nil {
		return "", nil // what else is wrong shows in the rename
	}
	old = final + tempInfix + randomName()
	if err := s.disk.rename(final, old); err != nil {
		return "", s.fail("rename", final, err)
	}
	return old, nil
}
