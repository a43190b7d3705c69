// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"cmp"
	"fmt"
	"io/fs"
)

// BusyError says that somebody else holds the lock of a storage, or has claimed the directory of a run.
type BusyError struct {
	Where  string // the storage, or the directory
	Holder string // what holds it: "run", or empty for a save
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("storage: another %s is under way in %s: wait for its end, or give each run a place of its own", cmp.Or(e.Holder, "save"), e.Where)
}

// ExistError says that a name is taken. It is one of [fs.ErrExist].
type ExistError struct{ Text string }

func (e *ExistError) Error() string { return e.Text }

// Is makes an ExistError one of [fs.ErrExist].
func (e *ExistError) Is(target error) bool { return target == fs.ErrExist }

// CommittedError says that a checkpoint is in place and whole, and that something
// failed after that: it may not survive a power failure.
type CommittedError struct {
	Name string // the checkpoint, with its storage
	Err  error
}

func (e *CommittedError) Error() string {
	return fmt.Sprintf("storage: %s is in place, but it may not survive a power failure: %v", e.Name, e.Err)
}

func (e *CommittedError) Unwrap() error { return e.Err }

// DoubtError says that nobody knows whether a checkpoint is in place: the request
// that commits it was sent and not answered, and may still take place. Its stage
// must not be removed now. Whoever looks later sees either the whole checkpoint or none.
type DoubtError struct {
	Name string // the checkpoint, with its storage
	Err  error
}

func (e *DoubtError) Error() string {
	return fmt.Sprintf("storage: whether %s was committed is not known, because the server did not answer: %v; look again later, its files stay", e.Name, e.Err)
}

func (e *DoubtError) Unwrap() error { return e.Err }

// ServerError says that a server did not do what it was asked, or could not be
// reached, also when it was asked again. It says nothing about the file: a checkpoint
// that cannot be read so is not damaged.
type ServerError struct {
	Err error
}

func (e *ServerError) Error() string { return e.Err.Error() }

func (e *ServerError) Unwrap() error { return e.Err }
