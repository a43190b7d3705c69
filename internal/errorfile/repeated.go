// SPDX-License-Identifier: Apache-2.0

package errorfile

// Repeated is an error that another worker of the job has ended with, too, and has
// said before: the launcher's report tells it, so it need not be printed again.
type Repeated struct{ Err error }

func (e *Repeated) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Repeated) Unwrap() error { return e.Err }
