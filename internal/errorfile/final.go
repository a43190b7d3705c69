// SPDX-License-Identifier: Apache-2.0

package errorfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// Final is an error that the same worker would end with again, whatever else happens:
// of its settings, its files or its data. A launcher does not start it again for that.
type Final struct{ Err error }

func (e *Final) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Final) Unwrap() error { return e.Err }

// Refuse records that this process ends before it has begun, as it would each time, such as
// for its command line. It must be a worker itself, which leads a session: how a program
// ends that a worker runs beside its own work says nothing of the worker's end.
func Refuse(err error) {
	if leader, no := unix.Getsid(0); no == nil && leader == os.Getpid() {
		Record(&Final{Err: err}, "")
	}
}
