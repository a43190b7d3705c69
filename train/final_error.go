// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/errorfile"
)

// settled marks an error of settings, data or checkpoints as final: the same call
// would end with it again, so that a launcher does not start the ranks again. An
// error that may pass, or is another rank's, stays as it is.
func settled(err error) error {
	if err == nil || passing(err) {
		return err
	}
	return &errorfile.Final{Err: err}
}

// passing reports whether an error may be gone the next time: another rank's
// failure, the end of a context, or a resource that the system lacks now.
func passing(err error) bool {
	var rank *dist.RankError
	var late *dist.TimeoutError
	var busy *storage.BusyError
	var lags *laggingError
	var errno syscall.Errno
	switch {
	case errors.As(err, &rank), errors.As(err, &late), errors.As(err, &busy), errors.As(err, &lags), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return false
	}
	// A failing disk may come back. A wrong path stays wrong.
	stays := []syscall.Errno{syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL, syscall.EROFS}
	return errors.As(err, &errno) && !slices.Contains(stays, errno)
}
